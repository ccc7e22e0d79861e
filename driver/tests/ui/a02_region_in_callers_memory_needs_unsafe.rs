//! A02: memory that the program brings is registered under a contract.
use ferroce::mem::CallerMemory;
use ferroce::verbs::{Access, CallerMr, Pd};

fn registered(pd: &Pd, memory: &CallerMemory<'_>) {
    CallerMr::register(pd, memory, Access::all()).unwrap();
}

fn main() {}
