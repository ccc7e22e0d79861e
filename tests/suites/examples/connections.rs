//! Many connections, at full size: 5000 one after the other, 10,000 at once, and those again on a wire that loses every
//! tenth frame.
//!
//! `cargo run --release -p ferroce-suites --example connections`

use ferroce_suites::cm::{churn, storm};

fn main() {
    println!("one after the other:     {}", churn(5000));
    println!("64 at a time:            {}", storm(10_000, 64, 0.0));
    println!("64 at a time, 10 % lost: {}", storm(10_000, 64, 0.1));
}
