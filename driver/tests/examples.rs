//! The examples run, and end well.

#[path = "../examples/two_nics.rs"]
mod two_nics;

#[test]
fn two_nics_in_one_process() {
    two_nics::main().unwrap();
}
