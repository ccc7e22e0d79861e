//! What Linux's mlx5 drivers, rdma-core's VFIO provider, ferroce and the driver of a real card do differently, has
//! reasons, all of them; and the page that says so is up to date.

use std::collections::BTreeMap;

use ferroce_compare::compare::{Comparison, compare};
use ferroce_compare::programs::{Program, load, top};
use ferroce_compare::reasons::Reasons;
use ferroce_compare::report;
use ferroce_compare::roles::Act;

fn acts() -> BTreeMap<Program, Vec<Act>> {
    let programs = Program::ALL.into_iter();
    programs
        .map(|program| (program, load(program).expect("a recording")))
        .collect()
}

fn reasons() -> Reasons {
    let text = std::fs::read_to_string(top().join(report::REASONS)).expect("the reasons");
    Reasons::parse(&text).expect("reasons")
}

fn explained(comparison: &Comparison) -> Vec<String> {
    reasons().unexplained(comparison)
}

#[test]
fn every_difference_has_a_reason() {
    let wrong = explained(&compare(&acts()));
    assert!(
        wrong.is_empty(),
        "add to {} why, or mend the driver:\n{}",
        report::REASONS,
        wrong.join("\n")
    );
}

#[test]
fn the_page_is_what_the_program_writes() {
    let learnt = std::fs::read_to_string(top().join(report::LEARNT)).expect("what was learnt");
    let page = report::write(&compare(&acts()), &reasons(), &learnt);
    let committed = std::fs::read_to_string(top().join(report::DOCUMENT)).expect("the page");
    let pairs = page.lines().zip(committed.lines());
    let first = pairs.enumerate().find(|(_, (new, old))| new != old);
    assert!(
        page == committed,
        "run scripts/compare-bringup; line {first:?} of {} is not what it writes",
        report::DOCUMENT
    );
}

/// A new difference is one that no reason was written for.
#[test]
fn a_new_difference_is_told() {
    let mut acts = acts();
    let ours = acts.get_mut(&Program::Ferroce).expect("ferroce's");
    let role = "INIT2RTR_QP (RC)";
    for act in ours.iter_mut().filter(|act| act.role == role) {
        act.fields.insert("qpc.mtu".into(), "0x7".into());
        act.fields.insert("qpc.log_rra_max".into(), "0x5".into());
        act.fields
            .insert("reserved bits of dword 0x30".into(), "0x1".into());
    }
    ours.retain(|act| act.role != "SET_ISSI");
    let wrong = explained(&compare(&acts));
    let told = |what: &str| wrong.iter().any(|line| line.starts_with(what));
    assert!(told("INIT2RTR_QP (RC): qpc.mtu: "), "{wrong:?}");
    assert!(
        told("INIT2RTR_QP (RC): qpc.log_rra_max: "),
        "another value than the one explained: {wrong:?}"
    );
    assert!(
        told("INIT2RTR_QP (RC): reserved bits of dword 0x30: "),
        "{wrong:?}"
    );
    assert!(told("SET_ISSI: ferroce lacks it"), "{wrong:?}");
}

/// Sets a field in all of a program's acts of a role.
fn set(acts: &mut BTreeMap<Program, Vec<Act>>, program: Program, role: &str, field: &str, value: &str) {
    let own = acts.get_mut(&program).expect("the program's");
    let mut found = false;
    for act in own.iter_mut().filter(|act| act.role == role) {
        act.fields.insert(field.into(), value.into());
        found = true;
    }
    assert!(found, "{program:?} has no {role}");
}

#[test]
fn another_work_request_of_ours_is_told() {
    let before = acts();
    for (role, field, value) in [
        ("WQE RDMA_WRITE (RC)", "ctrl.fence", "0x2"),
        ("WQE SEND_INVAL (RC)", "ctrl.ds", "0x3"),
        ("WQE SEND_IMM (UD)", "av reserved bits of dword 0x8", "0x1"),
        ("send doorbell (RC)", "its first 8 bytes are those of", "none"),
        ("CQ arm (RC), next number", "waits for", "solicited"),
        ("CREATE_CQ (RC)", "its pages", "3 where 8 hold it"),
        ("ATTACH_TO_MCG", "reserved bits of dword 0x8", "0x1"),
    ] {
        let mut acts = before.clone();
        set(&mut acts, Program::Ferroce, role, field, value);
        let wrong = explained(&compare(&acts));
        let told = format!("{role}: {field}: ");
        assert!(
            wrong.iter().any(|line| line.starts_with(&told)),
            "{told}{wrong:?}"
        );
    }
}

#[test]
fn another_value_of_linux_is_told() {
    let before = acts();
    for (role, field) in [
        ("INIT2RTR_QP (RC)", "qpc.log_rra_max"),
        ("CREATE_EQ (page requests)", "eqc.intr"),
        ("WQE ATOMIC_CS (RC)", "ctrl.ds"),
        ("EQ arm (completions)", "offset"),
    ] {
        let mut acts = before.clone();
        set(&mut acts, Program::Linux, role, field, "0xf");
        let mut wrong = explained(&compare(&acts));
        // What is explained already has its values on the page.
        if wrong.is_empty() {
            let learnt = std::fs::read_to_string(top().join(report::LEARNT)).expect("what was learnt");
            let page = report::write(&compare(&acts), &reasons(), &learnt);
            let committed = std::fs::read_to_string(top().join(report::DOCUMENT)).expect("the page");
            assert_ne!(page, committed);
            wrong.push(format!("{role}: {field}: by the page"));
        }
        let told = format!("{role}: {field}: ");
        assert!(
            wrong.iter().any(|line| line.starts_with(&told)),
            "{told}{wrong:?}"
        );
    }
}

#[test]
fn a_reason_that_is_of_nothing_any_more_is_told() {
    let before = acts();
    for (program, role, field, value) in [
        // Linux asks as ferroce does: one role of two that the reason names.
        (Program::Linux, "ENABLE_HCA", "output length", "0x10"),
        (Program::Ferroce, "CREATE_RQ", "rqc.vsd", "0"),
    ] {
        let mut acts = before.clone();
        set(&mut acts, program, role, field, value);
        if program == Program::Linux {
            set(&mut acts, Program::RdmaCore, role, field, value);
        }
        let wrong = explained(&compare(&acts));
        let stale = |line: &&String| line.starts_with("the reason is of nothing any more: [[difference]] ");
        assert!(
            wrong.iter().any(|line| stale(&line)),
            "{role}: {field}: {wrong:?}"
        );
    }
    let mut acts = before;
    let linux = acts.get_mut(&Program::Linux).expect("Linux's");
    linux.retain(|act| act.role != "SET_DRIVER_VERSION");
    let wrong = explained(&compare(&acts));
    let told = "the reason is of nothing any more: [[lacking]] `SET_DRIVER_VERSION`";
    assert!(wrong.iter().any(|line| line.starts_with(told)), "{wrong:?}");
}

/// What is compared is really there: each kind of work request, and the doorbells.
#[test]
fn the_recordings_hold_the_whole_of_the_work() {
    let acts = acts();
    for program in [Program::Linux, Program::Ferroce] {
        let roles: Vec<&str> = acts[&program].iter().map(|act| act.role.as_str()).collect();
        for role in [
            "register 0x14 cmdq_phy_addr_31_12, nic_interface, sizes",
            "INIT_HCA",
            "CREATE_EQ (completions)",
            "RTR2RTS_QP (RC)",
            "WQE SEND (RC)",
            "WQE SEND (RC, inline)",
            "WQE SEND_IMM (RC)",
            "WQE SEND_INVAL (RC)",
            "WQE RDMA_WRITE (RC)",
            "WQE RDMA_WRITE_IMM (RC)",
            "WQE RDMA_READ (RC)",
            "WQE ATOMIC_FA (RC)",
            "WQE ATOMIC_CS (RC)",
            "WQE SEND (UC)",
            "WQE RDMA_WRITE (UC)",
            "WQE SEND (UD)",
            "WQE SEND_IMM (UD)",
            "WQE SEND (GSI)",
            "ATTACH_TO_MCG",
            "DETACH_FROM_MCG",
            "MODIFY_RMP",
            "receive WQE (SRQ)",
            "receive WQE (RC)",
            "send doorbell (RC)",
            "CQ arm (RC), first",
            "CQ arm (RC), next number",
            "EQ arm (completions)",
            "TEARDOWN_HCA",
        ] {
            assert!(roles.contains(&role), "{program:?} has no {role}");
        }
    }
}
