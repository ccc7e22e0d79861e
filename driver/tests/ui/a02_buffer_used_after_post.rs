//! A02: a buffer that was moved into a request is neither written, read nor dropped before it comes back.
use ferroce::verbs::{LocalBuffer, Qp};

fn written(qp: &mut Qp, mut buffer: LocalBuffer) {
    qp.post_recv_buffer(1, buffer).unwrap();
    buffer.as_mut_slice()[0] = 1;
}

fn read(qp: &mut Qp, buffer: LocalBuffer) -> u8 {
    qp.post_recv_buffer(1, buffer).unwrap();
    buffer.as_slice()[0]
}

fn dropped(qp: &mut Qp, buffer: LocalBuffer) {
    qp.post_recv_buffer(1, buffer).unwrap();
    drop(buffer);
}

fn main() {}
