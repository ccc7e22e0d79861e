//! A02: a buffer that was moved into a shared receive queue is not touched before it comes back, and the queue has one owner.
use ferroce::verbs::{LocalBuffer, RecvWr, Srq};

fn written(srq: &mut Srq, mut buffer: LocalBuffer) {
    srq.post_recv_buffer(1, buffer).unwrap();
    buffer.as_mut_slice()[0] = 1;
}

fn shared(srq: &Srq) {
    srq.post_recv(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
}

fn cloned(srq: &Srq) -> Srq {
    srq.clone()
}

fn main() {}
