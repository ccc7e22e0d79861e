//! A listener and a client on two NICs in this process, no hardware: a message over a connection by IP address.
//!
//! `cargo run -p ferroce --example connect`

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce::cm::{Event, Listener, Manager, Params, StaticTable};
use ferroce::context::{Context, OpenConfig};
use ferroce::function::InProcess;
use ferroce::verbs::{
    BufferOp, Cq, CqConfig, CqPoller, LocalBuffer, Pd, Qp, QpConfig, SendFlags, ToInit, WcSuccess,
};
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};

/// One side: a NIC with its connection manager.
struct Side {
    manager: Manager,
    pd: Pd,
    cq: Cq,
    poller: CqPoller,
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

impl Side {
    /// Opens the NIC with an address; its neighbours are told, since nobody asks for them by ARP here.
    fn new(context: &Arc<Context>, peer: (IpAddr, &Context)) -> Result<Side, Box<dyn Error>> {
        let neighbours = StaticTable::new(context).with(peer.0, peer.1.port_attributes()?.mac);
        let (cq, poller) = Cq::create(context, CqConfig::new(256))?;
        Ok(Side {
            manager: Manager::start(context, neighbours)?,
            pd: Pd::alloc(context)?,
            cq,
            poller,
        })
    }

    /// A queue pair with a receive posted, so that the peer's first message finds one.
    fn qp(&self) -> Result<Qp, Box<dyn Error>> {
        let mut qp = Qp::create(&self.pd, &self.cq, &self.cq, &QpConfig::default())?;
        qp.modify_to_init(&ToInit::default())?;
        qp.post_recv_buffer(1, LocalBuffer::alloc(&self.pd, 4096)?)?;
        qp.ring_recv();
        Ok(qp)
    }

    /// The next completion, if it is a success.
    fn completion(&mut self) -> Result<WcSuccess, Box<dyn Error>> {
        self.poller.wait(soon())?;
        Ok(self.poller.poll_one()?.ok_or("nothing completed")?.result()?)
    }
}

/// Takes one connection, and gives what it receives.
fn serve(mut side: Side, mut listener: Listener) -> Result<String, String> {
    let taken = || -> Result<String, Box<dyn Error>> {
        let request = listener.next_request(soon())?;
        println!("{} asks", request.remote_address());
        let mut connection = request.accept(side.qp()?, &Params::new().private_data(b"welcome"), soon())?;
        let received = side.completion()?;
        let length = received.byte_len as usize;
        let buffer = received.buffer.ok_or("the buffer did not come back")?;
        if let Event::Disconnected(cause) = connection.wait_event(soon())? {
            println!("the listener's connection has ended: {cause:?}");
        }
        Ok(String::from_utf8_lossy(&buffer.as_slice()[..length]).into_owned())
    };
    let mut taken = taken;
    taken().map_err(|error| error.to_string())
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let testbed = Testbed::new(TestbedConfig::default())?;
    let addresses: [IpAddr; 2] = ["192.0.2.1".parse()?, "192.0.2.2".parse()?];
    let open = |index: usize| -> Result<Arc<Context>, Box<dyn Error>> {
        let device = testbed.device(index).ok_or("no such NIC")?;
        let function = Arc::new(InProcess::new(&format!("nic{index}"), device)?);
        Ok(Context::open(
            function,
            OpenConfig::new().address(addresses[index]),
        )?)
    };
    let contexts = [open(0)?, open(1)?];
    let mut client = Side::new(&contexts[0], (addresses[1], &contexts[1]))?;
    let server = Side::new(&contexts[1], (addresses[0], &contexts[0]))?;

    let there = SocketAddr::new(addresses[1], 7174);
    let listener = Listener::bind(&server.manager, there)?;
    let serving = std::thread::spawn(move || serve(server, listener));

    let mut connection = client
        .manager
        .connect(client.qp()?, there, &Params::new(), soon())?;
    let greeting = String::from_utf8_lossy(connection.private_data());
    println!(
        "connected; the listener says {:?}",
        greeting.trim_end_matches('\0')
    );
    let mut message = LocalBuffer::alloc(&client.pd, 4096)?;
    message.as_mut_slice()[..5].copy_from_slice(b"hello");
    let (op, flags) = (BufferOp::Send { imm: None }, SendFlags::empty());
    connection
        .qp_mut()
        .post_send_buffer(2, op, flags, message, 0..5)?;
    connection.qp_mut().ring_send();
    println!("completed: {:?}", client.completion()?.opcode);
    connection.disconnect(soon())?;
    let received = serving.join().map_err(|_| "the listener panicked")??;
    assert_eq!(received, "hello");
    println!("received: {received:?}");
    Ok(())
}
