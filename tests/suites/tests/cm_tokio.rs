//! Connections as futures on tokio.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use ferroce::cm::tokio::{
    accept, connect, connect_datagram, disconnect, next_datagram_request, next_event, next_request,
};
use ferroce::cm::{ConnectError, DatagramListener, DisconnectCause, Event, Params, RejectReason};
use ferroce_suites::cm::{Hosts, soon};
use ferroce_suites::pair::PATIENCE;

fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let output = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), future).await });
    output.expect("it does not hang")
}

#[test]
fn connections_are_made_and_ended_by_futures() {
    let hosts = Hosts::new();
    run(async {
        let mut listener = hosts.listen();
        for _ in 0..5 {
            let params = Params::new();
            let taking = async {
                let request = next_request(&mut listener).await.unwrap();
                accept(request, hosts.b.qp(), &params, soon()).await.unwrap()
            };
            let asking = connect(&hosts.a.manager, hosts.a.qp(), hosts.there(), &params, soon());
            let (active, mut passive) = tokio::join!(asking, taking);
            let mut active = active.unwrap();
            let (ended, event) = tokio::join!(disconnect(&mut active, soon()), next_event(&mut passive));
            ended.unwrap();
            assert_eq!(event, Event::Disconnected(DisconnectCause::Peer));
        }
    });
    hosts.assert_clean();
}

#[test]
fn futures_may_be_dropped_at_any_time() {
    let hosts = Hosts::new();
    run(async {
        let mut listener = hosts.listen();
        let params = Params::new();
        let mut made = 0;
        for round in 0..40usize {
            let asking = connect(&hosts.a.manager, hosts.a.qp(), hosts.there(), &params, soon());
            let taking = async {
                let request = next_request(&mut listener).await.unwrap();
                // The one who asked may be gone.
                accept(request, hosts.b.qp(), &params, soon()).await
            };
            let mut both = Box::pin(async { tokio::join!(asking, taking) });
            // Whatever is in the middle of something after so many turns is dropped.
            for _ in 0..round * round {
                let turn = poll_fn(|context| Poll::Ready(both.as_mut().poll(context))).await;
                if let Poll::Ready((Ok(_active), Ok(_passive))) = turn {
                    made += 1;
                    break;
                }
                if turn.is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        println!("{made} of 40 were made in time");
        assert!(made < 40, "those of the first rounds are dropped");
        // Futures that wait for a request and are dropped lose none.
        let _ = tokio::time::timeout(Duration::ZERO, next_request(&mut listener)).await;
        let asking = connect(&hosts.a.manager, hosts.a.qp(), hosts.there(), &params, soon());
        let taking = async {
            loop {
                // Those of the rounds before have given up.
                let request = next_request(&mut listener).await.unwrap();
                if let Ok(connection) = accept(request, hosts.b.qp(), &params, soon()).await {
                    return connection;
                }
            }
        };
        let (active, _passive) = tokio::join!(asking, taking);
        active.unwrap();
    });
    for host in [&hosts.a, &hosts.b] {
        host.manager.wait_idle(soon()).unwrap();
    }
    hosts.assert_clean();
}

#[test]
fn deadlines_and_rejections_end_futures() {
    let hosts = Hosts::new();
    run(async {
        let params = Params::new();
        let refused = connect(&hosts.a.manager, hosts.a.qp(), hosts.there(), &params, soon()).await;
        assert!(matches!(
            refused,
            Err(ConnectError::Rejected {
                reason: RejectReason::InvalidServiceId,
                ..
            })
        ));
        hosts.testbed.set_cable(false);
        let deadline = Instant::now() + Duration::from_millis(20);
        let late = connect(&hosts.a.manager, hosts.a.qp(), hosts.there(), &params, deadline).await;
        assert!(matches!(late, Err(ConnectError::Deadline { .. })));
    });
}

#[test]
fn datagram_services_are_found_by_futures() {
    let hosts = Hosts::new();
    run(async {
        let mut listener = DatagramListener::bind(&hosts.b.manager, hosts.there()).unwrap();
        let answering = async {
            let request = next_datagram_request(&mut listener).await.unwrap();
            request.accept(hosts.b.qp().qpn(), 7, b"here").unwrap();
        };
        let asking = connect_datagram(&hosts.a.manager, hosts.there(), b"who", soon());
        let (found, ()) = tokio::join!(asking, answering);
        let found = found.unwrap();
        assert_eq!((found.qkey, &found.private_data[..5]), (7, &b"here\0"[..]));
    });
}

/// Drops its task as soon as it is woken, in the thread that wakes it.
struct Dropper {
    task: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    woken: Mutex<Sender<()>>,
}

impl Wake for Dropper {
    fn wake(self: Arc<Self>) {
        drop(self.task.lock().unwrap().take());
        let _ = self.woken.lock().unwrap().send(());
    }
}

#[test]
fn a_waker_may_drop_its_task_at_once() {
    let hosts = Hosts::new();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let _timers = runtime.enter();
    // Nobody listens there: the answer wakes the task.
    let (manager, qp, there) = (hosts.a.manager.clone(), hosts.a.qp(), hosts.there());
    let task = async move {
        let params = Params::new();
        drop(connect(&manager, qp, there, &params, soon()).await);
    };
    let (woken, waiting) = channel();
    let dropper = Arc::new(Dropper {
        task: Mutex::new(Some(Box::pin(task))),
        woken: Mutex::new(woken),
    });
    let waker = Waker::from(dropper.clone());
    {
        let mut task = dropper.task.lock().unwrap();
        let turn = task
            .as_mut()
            .unwrap()
            .as_mut()
            .poll(&mut Context::from_waker(&waker));
        assert!(turn.is_pending());
    }
    waiting
        .recv_timeout(PATIENCE)
        .expect("the manager's thread goes on");
    assert!(dropper.task.lock().unwrap().is_none());
    // It does.
    let mut listener = hosts.listen();
    drop(hosts.connect(&mut listener));
    hosts.assert_clean();
}
