use super::*;

#[test]
fn q03_the_table_has_the_standards_transitions() {
    use QpState::*;
    let states = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err];
    // Rows: from; columns: to, in the order above.
    #[rustfmt::skip]
    let table = [
        // RESET INIT  RTR    RTS    SQD    SQE    ERR
        [true, true,  false, false, false, false, true], // RESET
        [true, true,  true,  false, false, false, true], // INIT
        [true, false, false, true,  false, false, true], // RTR
        [true, false, false, true,  true,  false, true], // RTS
        [true, false, false, true,  true,  false, true], // SQD
        [true, false, false, false, false, false, true], // SQE
        [true, false, false, false, false, false, true], // ERR
    ];
    for (row, from) in table.into_iter().zip(states) {
        for (expected, to) in row.into_iter().zip(states) {
            assert_eq!(allowed(from, to), expected, "{from} to {to}");
        }
    }
}

#[test]
fn depths_are_rounded_up() {
    assert_eq!(
        [0, 1, 2, 3, 4, 5, 16, 128].map(log_depth),
        [0, 0, 1, 2, 2, 3, 4, 7]
    );
}
