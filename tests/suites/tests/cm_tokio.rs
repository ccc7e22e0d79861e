//! Connections as futures on tokio.

use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::{Duration, Instant};

use ferroce::cm::tokio::{
    accept, connect, connect_datagram, disconnect, next_datagram_request, next_event, next_request,
};
use ferroce::cm::{ConnectError, DatagramListener, DisconnectCause, Event, Params, RejectReason};
use ferroce_suites::cm::{Hosts, soon};

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
