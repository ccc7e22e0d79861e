//! The examples run, and end well.

#[path = "../examples/connect.rs"]
mod connect;

#[path = "../examples/two_nics.rs"]
mod two_nics;

#[test]
fn a_connection_between_two_nics_in_one_process() {
    connect::main().unwrap();
}

#[test]
fn two_nics_in_one_process() {
    two_nics::main().unwrap();
}
