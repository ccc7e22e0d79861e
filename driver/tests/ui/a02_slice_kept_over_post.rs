//! A02: a slice of a buffer does not survive the buffer's move into a request.
use ferroce::verbs::{LocalBuffer, Qp};

fn kept(qp: &mut Qp, buffer: LocalBuffer) -> u8 {
    let bytes = buffer.as_slice();
    qp.post_recv_buffer(1, buffer).unwrap();
    bytes[0]
}

fn main() {}
