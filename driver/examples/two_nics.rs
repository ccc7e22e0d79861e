//! Two NICs in one process, no hardware: a WRITE, and a message whose buffer comes back with its completion.
//!
//! `cargo run -p ferroce --example two_nics`

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce::context::{Context, OpenConfig};
use ferroce::function::InProcess;
use ferroce::gid::{Gid, RoceVersion};
use ferroce::verbs::{
    Access, BufferOp, Cq, CqConfig, CqPoller, LocalBuffer, Mr, Path, Payload, Pd, Qp, QpConfig, SendFlags,
    SendOp, SendWr, ToInit, ToRtr, ToRts, WcSuccess,
};
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};

/// One side of a connection.
struct Side {
    context: Arc<Context>,
    pd: Pd,
    qp: Qp,
    poller: CqPoller,
}

impl Side {
    fn new(context: Arc<Context>) -> Result<Side, Box<dyn Error>> {
        let pd = Pd::alloc(&context)?;
        let (cq, poller) = Cq::create(&context, CqConfig::new(256))?;
        let qp = Qp::create(&pd, &cq, &cq, &QpConfig::default())?;
        Ok(Side {
            context,
            pd,
            qp,
            poller,
        })
    }

    /// Index and value of the GID that speaks RoCE v2 over IPv4.
    fn gid(&self) -> Result<(u16, Gid), Box<dyn Error>> {
        let wanted = |e: &ferroce::gid::GidEntry| e.version == RoceVersion::V2 && e.gid.to_ipv4().is_some();
        let index = self.context.gids().find(wanted).ok_or("no RoCE v2 GID")?;
        Ok((index, self.context.gids().get(index).ok_or("no RoCE v2 GID")?.gid))
    }

    fn connect(&mut self, peer: &Side) -> Result<(), Box<dyn Error>> {
        let path = Path::new(self.gid()?.0, peer.gid()?.1, peer.context.port_attributes()?.mac);
        self.qp.modify_to_init(&ToInit::default())?;
        self.qp.modify_to_rtr(&ToRtr::new(path, peer.qp.qpn(), 0))?;
        self.qp.modify_to_rts(&ToRts::new(0))?;
        Ok(())
    }

    /// The next completion, if it is a success.
    fn completion(&mut self) -> Result<WcSuccess, Box<dyn Error>> {
        self.poller.wait(Instant::now() + Duration::from_secs(10))?;
        Ok(self.poller.poll_one()?.ok_or("nothing completed")?.result()?)
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let testbed = Testbed::new(TestbedConfig::default())?;
    let open = |index: usize, address: &str| -> Result<Arc<Context>, Box<dyn Error>> {
        let device = testbed.device(index).ok_or("no such NIC")?;
        let function = Arc::new(InProcess::new(address, device)?);
        Ok(Context::open(
            function,
            OpenConfig::new().address(address.parse()?),
        )?)
    };
    let mut a = Side::new(open(0, "192.0.2.1")?)?;
    let mut b = Side::new(open(1, "192.0.2.2")?)?;
    a.connect(&b)?;
    b.connect(&a)?;

    // A region that the peer may write to is read by copying, since its bytes may change at any time.
    let source = Mr::alloc(&a.pd, 4096, Access::LOCAL_WRITE)?;
    let target = Mr::alloc(&b.pd, 4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    source.write(0, b"written")?;
    let sges = [source.sge(0..7)?];
    let op = SendOp::Write {
        data: Payload::Gather(&sges),
        remote: target.remote(100),
        imm: None,
    };
    a.qp.post_send(&SendWr {
        wr_id: 1,
        op,
        flags: SendFlags::SIGNALED,
    })?;
    a.qp.ring_send();
    println!("completed: {:?}", a.completion()?.opcode);
    let mut bytes = [0; 7];
    target.read(100, &mut bytes)?;
    assert_eq!(&bytes, b"written");

    // A buffer that only this side uses is a plain slice, but for the time that it is in a request.
    b.qp.post_recv_buffer(2, LocalBuffer::alloc(&b.pd, 4096)?)?;
    b.qp.ring_recv();
    let mut message = LocalBuffer::alloc(&a.pd, 4096)?;
    message.as_mut_slice()[..4].copy_from_slice(b"sent");
    a.qp.post_send_buffer(
        3,
        BufferOp::Send { imm: Some(7) },
        SendFlags::empty(),
        message,
        0..4,
    )?;
    a.qp.ring_send();
    let received = b.completion()?;
    let (len, imm) = (received.byte_len as usize, received.imm);
    let buffer = received.buffer.ok_or("the buffer did not come back")?;
    assert_eq!((&buffer.as_slice()[..len], imm), (&b"sent"[..], Some(7)));
    println!(
        "received: {:?}, immediate {imm:?}",
        String::from_utf8_lossy(&buffer.as_slice()[..len])
    );
    println!("completed: {:?}", a.completion()?.opcode);
    Ok(())
}
