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
            assert_eq!(allowed(QpType::Rc, from, to), expected, "{from} to {to}");
            for other in [QpType::Uc, QpType::Ud, QpType::Gsi] {
                let expected = expected || (from, to) == (Sqe, Rts);
                assert_eq!(allowed(other, from, to), expected, "{other}: {from} to {to}");
            }
        }
    }
}

fn path() -> Path {
    Path::new(0, crate::gid::Gid([1; 16]), crate::port::MacAddress([2; 6]))
}

fn refusal<T: std::fmt::Debug>(result: Result<T, ModifyError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn each_service_has_its_attributes_and_no_others() {
    let caps = crate::caps::testing::caps();
    let qkey = |qp_type, qkey| {
        ToInit {
            qkey,
            ..ToInit::default()
        }
        .qkey(qp_type)
    };
    assert_eq!(qkey(QpType::Rc, None).unwrap(), 0);
    assert_eq!(qkey(QpType::Ud, Some(7)).unwrap(), 7);
    assert_eq!(qkey(QpType::Gsi, None).unwrap(), GSI_QKEY);
    assert_eq!(qkey(QpType::Gsi, Some(GSI_QKEY)).unwrap(), GSI_QKEY);
    assert_eq!(
        refusal(qkey(QpType::Ud, None)),
        "the way to INIT of a UD queue pair needs qkey"
    );
    assert_eq!(
        refusal(qkey(QpType::Uc, Some(7))),
        "the way to INIT of a UC queue pair has no qkey; leave it out, or 0"
    );
    assert!(qkey(QpType::Gsi, Some(7)).is_err() && qkey(QpType::Rc, Some(7)).is_err());

    let qpn = Qpn::from_low_bits(5);
    ToRtr::new(path(), qpn, 1).check(&caps, QpType::Rc).unwrap();
    ToRtr::uc(path(), qpn, 1).check(&caps, QpType::Uc).unwrap();
    assert_eq!(
        refusal(ToRtr::new(path(), qpn, 1).check(&caps, QpType::Uc)),
        "the way to RTR of a UC queue pair has no max_dest_rd_atomic; leave it out, or 0"
    );
    ToRts::new(1).check(&caps, QpType::Rc).unwrap();
    ToRts::uc(1).check(&caps, QpType::Uc).unwrap();
    for (attribute, to) in [
        (
            "timeout",
            ToRts {
                timeout: 14,
                ..ToRts::uc(1)
            },
        ),
        (
            "retry_count",
            ToRts {
                retry_count: 7,
                ..ToRts::uc(1)
            },
        ),
        (
            "rnr_retry",
            ToRts {
                rnr_retry: 7,
                ..ToRts::uc(1)
            },
        ),
        (
            "max_rd_atomic",
            ToRts {
                max_rd_atomic: 1,
                ..ToRts::uc(1)
            },
        ),
    ] {
        assert!(refusal(to.check(&caps, QpType::Uc)).contains(attribute));
    }

    let access = Update {
        access: Some(Access::empty()),
        ..Update::default()
    };
    let timer = Update {
        min_rnr_timer: Some(1),
        ..Update::default()
    };
    let key = Update {
        qkey: Some(1),
        ..Update::default()
    };
    for (update, services) in [
        (access, &[QpType::Rc, QpType::Uc][..]),
        (timer, &[QpType::Rc]),
        (key, &[QpType::Ud]),
    ] {
        for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Gsi] {
            assert_eq!(
                update.check(qp_type).is_ok(),
                services.contains(&qp_type),
                "{update:?} {qp_type}"
            );
        }
    }
}

#[test]
fn more_reads_are_never_asked_than_said_and_never_fewer_answered() {
    let counts = [0, 1, 2, 3, 4, 5, 16, 127, 128];
    assert_eq!(counts.map(log_answered), [0, 0, 1, 2, 2, 3, 4, 7, 7]);
    assert_eq!(counts.map(log_asked), [0, 0, 1, 1, 2, 2, 4, 6, 7]);
}
