//! The library prints nothing, whatever goes wrong (case Q24): errors are values.

use std::fs::File;
use std::process::Command;

use ferroce::verbs::{Lkey, Payload, QpConfig, RecvWr, SendFlags, SendOp, SendWr, Sge, WcError, WcStatus};
use ferroce_nic_model::link::fault::Faults;
use ferroce_nic_model::testbed::TestbedConfig;
use ferroce_suites::pair::Pair;
use rustix::stdio::{dup2_stderr, dup2_stdout, stderr, stdout};

const FILE: &str = "FERROCE_TEST_SILENCE";

fn pair() -> Pair {
    Pair::with(TestbedConfig::default(), &QpConfig::default(), |_, rts| {
        (rts.timeout, rts.retry_count, rts.rnr_retry) = (8, 1, 1);
    })
}

fn failure(pair: &mut Pair, op: SendOp<'_>) -> WcError {
    let flags = SendFlags::SIGNALED;
    pair.a
        .qp
        .post_send_list(&[SendWr { wr_id: 77, op, flags }])
        .unwrap();
    let error = pair.a.failure();
    assert_eq!(
        (error.wr_id, error.qpn, error.wqe_index),
        (77, pair.a.qp.qpn(), 0)
    );
    assert!(!error.is_receive);
    error
}

/// Six kinds of errors; what each says.
fn six_kinds() -> Vec<(WcStatus, u8)> {
    let empty = SendOp::Send {
        data: Payload::Inline(&[]),
        imm: None,
    };
    let mut found = Vec::new();
    let mut note = |error: WcError| found.push((error.status, error.vendor_syndrome));

    let mut p = pair();
    let far = [Sge::new(0x1234_5000, 8, Lkey::new(p.a.mr.lkey()).unwrap())];
    note(failure(
        &mut p,
        SendOp::Send {
            data: Payload::Gather(&far),
            imm: None,
        },
    ));
    p.a.qp
        .post_send_list(&[SendWr {
            wr_id: 1,
            op: empty,
            flags: SendFlags::SIGNALED,
        }])
        .unwrap();
    note(p.a.failure());

    let mut p = pair();
    let mut remote = p.b.mr.remote(0);
    remote.rkey ^= 0x5500;
    note(failure(
        &mut p,
        SendOp::Write {
            data: Payload::Inline(b"x"),
            remote,
            imm: None,
        },
    ));

    let mut p = pair();
    p.b.qp.post_recv_list(&[RecvWr { wr_id: 1, sges: &[] }]).unwrap();
    note(failure(
        &mut p,
        SendOp::Send {
            data: Payload::Inline(b"too long"),
            imm: None,
        },
    ));
    note(p.b.failure());

    note(failure(&mut pair(), empty));

    let mut p = pair();
    p.testbed
        .set_faults(Faults {
            loss: 1.0,
            ..Faults::default()
        })
        .unwrap();
    note(failure(&mut p, empty));
    found
}

#[test]
fn helper_with_both_outputs_in_a_file() {
    let Ok(path) = std::env::var(FILE) else { return };
    let file = File::create(path).unwrap();
    let outputs = (
        stdout().try_clone_to_owned().unwrap(),
        stderr().try_clone_to_owned().unwrap(),
    );
    dup2_stdout(&file).unwrap();
    dup2_stderr(&file).unwrap();
    let found = six_kinds();
    dup2_stdout(&outputs.0).unwrap();
    dup2_stderr(&outputs.1).unwrap();
    let kinds: Vec<WcStatus> = found.iter().map(|(status, _)| *status).collect();
    let wanted = [
        WcStatus::LocalProtection,
        WcStatus::Flushed,
        WcStatus::RemoteAccess,
        WcStatus::RemoteInvalidRequest,
        WcStatus::LocalLength,
        WcStatus::RnrRetryExceeded,
        WcStatus::TransportRetryExceeded,
    ];
    assert_eq!(kinds, wanted);
}

#[test]
fn q24_q20_nothing_is_printed_and_errors_say_all() {
    let path = std::env::temp_dir().join(format!("ferroce-silence-{}", std::process::id()));
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "helper_with_both_outputs_in_a_file", "--nocapture"])
        .env(FILE, &path)
        .output()
        .unwrap();
    let printed = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(printed, "");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}
