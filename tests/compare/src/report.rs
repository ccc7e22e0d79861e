//! `docs/bringup-comparison.md`.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::compare::{Comparison, Presence, Row, Values, has_place};
use crate::programs::Program;
use crate::reasons::{Reasons, join};

/// The document.
pub const DOCUMENT: &str = "docs/bringup-comparison.md";
/// The reasons.
pub const REASONS: &str = "tests/compare/reasons.toml";
/// What was learnt.
pub const LEARNT: &str = "tests/compare/learnt.md";

/// What comes before the tables.
const INTRODUCTION: &str = "\
# Bring-up and traffic, side by side

What four programs say to a NIC for the same work: from probe to queue pairs in RTS, a work request of each kind,
completion and event queues armed, and all of it taken down again. `scripts/compare-bringup` wrote this page from
recordings; what is different has its reason, and a test (`tests/compare/tests/compare.rs`) fails when a difference
appears that has none, or when this page is not what the program writes.

| program | what it is | recording |
| --- | --- | --- |
| Linux | mlx5_core, its netdev, mlx5_ib and libmlx5 of Debian 13 with `ibv_*_pingpong`, perftest, rping, mckey and a program of ours with pyverbs for what these leave out, on the model's ConnectX-5 | `tests/data/traces/linux.jsonl`, made in [the lab](lab.md) |
| rdma-core | Debian's libmlx5 VFIO provider with rdma-core's own traffic test, on the same | `tests/data/traces/rdma-core.jsonl`, made in the lab |
| ferroce | this driver, on the same | made anew whenever it is compared |
| card | Linux's mlx5_core of 2016 on a real ConnectX-4, from ENABLE_HCA to event queues | `tests/data/connectx4-commands.jsonl` |

A recording is read as *roles*: the creation of a completion queue for RC queue pairs is one, the first arm of such a
queue another, a WRITE with inline data a third. Within a role the programs are compared field by field, by the PRM's
layouts, reserved bits and lengths included. Addresses, numbers of objects, keys and sequence numbers count as there or
not there; of page lists it is said whether they hold what they are for, whatever the pages' size. A field differs when two
programs have no value in common, or ferroce has one that nobody else has. In what only ferroce does, any reserved bit is a
difference. A reason is for the values that ferroce has now, and has to be of something: another value, or a reason that
nothing needs any more, fails the test too.

`scripts/compare-bringup` writes the page anew, `scripts/compare-bringup --record` makes the recordings anew first. The
reasons are in `tests/compare/reasons.toml`.
";

/// The document for a comparison.
pub fn write(comparison: &Comparison, reasons: &Reasons, learnt: &str) -> String {
    let mut text = INTRODUCTION.to_string();
    text.push_str("\n## What was learnt\n\n");
    text.push_str(learnt.trim_end());
    text.push('\n');
    summary(comparison, &mut text);
    differences(comparison, reasons, &mut text);
    presence(comparison, reasons, Presence::Lacking, &mut text);
    presence(comparison, reasons, Presence::Extra, &mut text);
    order(comparison, reasons, &mut text);
    text
}

/// Writing to a string can't fail.
macro_rules! line {
    ($text:expr, $($args:tt)*) => {{
        let _ = writeln!($text, $($args)*);
    }};
}

fn summary(comparison: &Comparison, text: &mut String) {
    let shared: Vec<&Row> = comparison
        .rows
        .iter()
        .filter(|row| row.programs.len() > 1)
        .collect();
    let alike: usize = shared.iter().map(|row| row.alike).sum();
    let different: usize = shared.iter().map(|row| row.different.len()).sum();
    line!(text, "\n## In numbers\n");
    line!(
        text,
        "{} roles, {} of them played by more than one program. In those, {alike} fields are alike and {different} differ.",
        comparison.rows.len(),
        shared.len(),
    );
    let same: Vec<String> = shared
        .iter()
        .filter(|row| row.different.is_empty())
        .map(|row| format!("{} ({})", code(&row.role), names(row)))
        .collect();
    line!(text, "\nAlike in everything: {}.", same.join(", "));
}

fn code(text: &str) -> String {
    format!("`{}`", text.replace('|', "\\|"))
}

fn names(row: &Row) -> String {
    let names: Vec<&str> = row.programs.iter().map(|program| program.name()).collect();
    names.join(", ")
}

fn differences(comparison: &Comparison, reasons: &Reasons, text: &mut String) {
    line!(text, "\n## What differs");
    for row in comparison.rows.iter().filter(|row| !row.different.is_empty()) {
        line!(text, "\n### {}\n", row.role);
        line!(text, "Fields alike: {}.\n", row.alike);
        let heads: Vec<&str> = row.programs.iter().map(|program| program.name()).collect();
        line!(text, "| field | {} | why |", heads.join(" | "));
        line!(text, "| --- |{} --- |", " --- |".repeat(heads.len()));
        let mut last = String::new();
        for (field, why) in by_reason(row, reasons) {
            let values: Vec<String> = row.different[field].values().map(|v| code(&join(v))).collect();
            let shown = if why == last { "as above" } else { &why };
            line!(text, "| {} | {} | {shown} |", code(field), values.join(" | "));
            last = why;
        }
    }
}

/// Fields that differ, those of one reason together, in the order of their first.
fn by_reason<'a>(row: &'a Row, reasons: &Reasons) -> Vec<(&'a String, String)> {
    let why = |field: &String, values: &Values| {
        let why = reasons.of_field(&row.role, field, values);
        why.unwrap_or("**no reason is known**").trim().to_string()
    };
    let all: Vec<(&String, String)> = row
        .different
        .iter()
        .map(|(f, values)| (f, why(f, values)))
        .collect();
    let place = |reason: &str| all.iter().position(|(_, why)| why == reason);
    let mut sorted = all.clone();
    sorted.sort_by_key(|(_, why)| place(why));
    sorted
}

fn presence(comparison: &Comparison, reasons: &Reasons, which: Presence, text: &mut String) {
    let title = match which {
        Presence::Lacking => "What ferroce does not do",
        Presence::Extra => "What ferroce does and Linux does not",
    };
    let mut by_why: Vec<(String, Vec<&Row>)> = Vec::new();
    for row in comparison.rows.iter().filter(|row| row.presence() == Some(which)) {
        let why = reasons
            .of_presence(which, &row.role)
            .unwrap_or("**no reason is known**")
            .trim()
            .to_string();
        match by_why.iter_mut().find(|(known, _)| *known == why) {
            Some((_, rows)) => rows.push(row),
            None => by_why.push((why, vec![row])),
        }
    }
    line!(text, "\n## {title}\n");
    line!(text, "| what | who does | why |\n| --- | --- | --- |");
    for (why, rows) in by_why {
        let mut by_names: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for row in rows {
            by_names.entry(names(row)).or_default().push(code(&row.role));
        }
        for (names, roles) in by_names {
            line!(text, "| {} | {names} | {why} |", roles.join(", "));
        }
    }
}

fn order(comparison: &Comparison, reasons: &Reasons, text: &mut String) {
    line!(text, "\n## In which order\n");
    line!(
        text,
        "Commands of bringing the NIC up and down that ferroce and another give, and as the how-manieth of these a program\nfirst gives each. Objects come and go as their programs like.\n"
    );
    let heads: Vec<&str> = Program::ALL.iter().map(|program| program.name()).collect();
    line!(
        text,
        "| command | {} | where ferroce's place is another |",
        heads.join(" | ")
    );
    line!(text, "| --- |{} --- |", " --- |".repeat(heads.len()));
    let mut rows: Vec<&Row> = comparison
        .rows
        .iter()
        .filter(|row| {
            has_place(&row.role) && row.programs.len() > 1 && row.presence() != Some(Presence::Lacking)
        })
        .collect();
    let place =
        |program: Program, role: &str| comparison.first.get(&program).and_then(|first| first.get(role));
    rows.sort_by_key(|row| place(Program::Ferroce, &row.role));
    // Places among these alone, so that what else a program does does not move them.
    let rank = |program: Program, role: &str| {
        let own = place(program, role)?;
        let before = rows
            .iter()
            .filter_map(|row| place(program, &row.role))
            .filter(|other| *other < own);
        Some(before.count() + 1)
    };
    for row in &rows {
        let places: Vec<String> = Program::ALL
            .iter()
            .map(|program| rank(*program, &row.role).map_or_else(String::new, |place| place.to_string()))
            .collect();
        let moved: Vec<String> = comparison
            .moved
            .iter()
            .filter(|(_, role)| *role == row.role)
            .map(|(program, role)| {
                let why = reasons
                    .of_order(*program, role)
                    .unwrap_or("**no reason is known**");
                format!("{}: {}", program.name(), why.trim())
            })
            .collect();
        line!(
            text,
            "| {} | {} | {} |",
            code(&row.role),
            places.join(" | "),
            moved.join("<br>")
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::compare;
    use crate::roles::Act;

    #[test]
    fn a_difference_and_its_reason_are_written() {
        let act = |value: &str| Act {
            role: "CREATE_CQ (RC)".into(),
            fields: [("cqc.oi".to_string(), value.to_string())].into(),
            records: 0..0,
        };
        let acts = [
            (Program::Linux, vec![act("0x1")]),
            (Program::Ferroce, vec![act("0x2")]),
        ]
        .into();
        let reasons = Reasons::parse(
            r#"
            [[difference]]
            roles = ["CREATE_CQ*"]
            ours = { "cqc.oi" = "0x2" }
            why = "It may be overrun."
        "#,
        );
        let text = write(&compare(&acts), &reasons.unwrap(), "Nothing yet.");
        assert!(text.contains("### CREATE_CQ (RC)\n"), "{text}");
        assert!(
            text.contains("| `cqc.oi` | `0x1` | `0x2` | It may be overrun. |"),
            "{text}"
        );
        let text = write(&compare(&acts), &Reasons::default(), "");
        assert!(text.contains("**no reason is known**"), "{text}");
    }
}
