//! Connections one after the other: alone in its process, whose file descriptors are counted.

use ferroce_suites::cm::churn;

#[test]
fn c08_connections_one_after_the_other_leave_nothing_behind() {
    println!("{}", churn(300));
}
