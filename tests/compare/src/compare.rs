//! What the programs do differently.

use std::collections::{BTreeMap, BTreeSet};

use crate::programs::Program;
use crate::roles::Act;

/// The values that each program has in a field.
pub type Values = BTreeMap<Program, BTreeSet<String>>;

/// A role, and what the programs do in it.
#[derive(Clone, Debug)]
pub struct Row {
    /// The role.
    pub role: String,
    /// Who plays it.
    pub programs: BTreeSet<Program>,
    /// Fields that differ.
    pub different: BTreeMap<String, Values>,
    /// Fields that don't.
    pub alike: usize,
}

/// A role that a program has not, or that only it has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Presence {
    /// ferroce does not do what another program does.
    Lacking,
    /// ferroce does what Linux does not.
    Extra,
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Roles, in the order in which they are first played, with those of the data path at the end.
    pub rows: Vec<Row>,
    /// Where in its own order each program first plays each role, from 1.
    pub first: BTreeMap<Program, BTreeMap<String, usize>>,
    /// Roles that ferroce plays at another place than the program does.
    pub moved: BTreeSet<(Program, String)>,
}

/// Part of the names of fields that are no fields.
const RESERVED: &str = "reserved bits of ";

/// Compares what the programs did.
pub fn compare(acts: &BTreeMap<Program, Vec<Act>>) -> Comparison {
    let first: BTreeMap<Program, BTreeMap<String, usize>> = acts
        .iter()
        .map(|(program, acts)| (*program, first_played(acts)))
        .collect();
    let rows = roles(&first).into_iter().map(|role| row(role, acts)).collect();
    let moved = moved(&first);
    Comparison { rows, first, moved }
}

fn first_played(acts: &[Act]) -> BTreeMap<String, usize> {
    let mut first = BTreeMap::new();
    for act in acts {
        let next = first.len() + 1;
        first.entry(act.role.clone()).or_insert(next);
    }
    first
}

fn in_order(first: &BTreeMap<String, usize>) -> Vec<&String> {
    let mut roles: Vec<&String> = first.keys().collect();
    roles.sort_by_key(|role| first[*role]);
    roles
}

/// Registers, then commands, then doorbells and queue entries.
fn part(role: &str) -> usize {
    match role {
        _ if role.starts_with("register") => 0,
        _ if is_command(role) => 1,
        _ => 2,
    }
}

/// Whether a role is a firmware command's: those are in capitals, with the digits of some names.
pub fn is_command(role: &str) -> bool {
    let name = role.split(" (").next().unwrap_or_default();
    name.len() > 2
        && !name.starts_with("WQE")
        && name
            .bytes()
            .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == b'_')
        || name.starts_with("0x")
}

/// Objects that a program creates and destroys when it likes.
const PROGRAMS: &[&str] = &[
    "_PD",
    "_CQ",
    "_QP",
    "_MKEY",
    "_SQ",
    "_RQ",
    "_TIS",
    "_TIR",
    "_RQT",
    "_RMP",
    "_SRQ",
    "_XRCD",
    "_UMEM",
    "_DOMAIN",
    "FLOW_",
    "Q_COUNTER",
];

/// Counters and the like, which a program reads when it likes.
const COUNTERS: &[&str] = &[
    "QUERY_CONG_STATISTICS",
    "ACCESS_REG (read PPCNT)",
    "ACCESS_REG (read PFCC)",
];

/// Whether a command belongs to bringing the NIC up or down, in an order that is the driver's.
pub fn has_place(role: &str) -> bool {
    let name = role.split(" (").next().unwrap_or_default();
    let of_program =
        |object: &&str| name.ends_with(*object) || (object.ends_with('_') && name.contains(object));
    is_command(role) && !COUNTERS.contains(&role) && !PROGRAMS.iter().any(of_program)
}

/// All roles: each program's that are new are put behind the one that comes before them there.
fn roles(first: &BTreeMap<Program, BTreeMap<String, usize>>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for own in first.values() {
        let mut at = 0;
        for role in in_order(own) {
            match all.iter().position(|known| known == role) {
                Some(known) => at = known + 1,
                None => {
                    all.insert(at, role.clone());
                    at += 1;
                }
            }
        }
    }
    all.sort_by_key(|role| part(role));
    all
}

fn row(role: String, acts: &BTreeMap<Program, Vec<Act>>) -> Row {
    let own = |program: &Program| {
        acts[program]
            .iter()
            .filter(|act| act.role == role)
            .collect::<Vec<_>>()
    };
    let playing: BTreeMap<Program, Vec<&Act>> = acts
        .keys()
        .map(|program| (*program, own(program)))
        .filter(|(_, acts)| !acts.is_empty())
        .collect();
    let names: BTreeSet<&String> = playing
        .values()
        .flatten()
        .flat_map(|act| act.fields.keys())
        .collect();
    let mut different = BTreeMap::new();
    let mut alike = 0;
    for name in names {
        let values: Values = playing
            .iter()
            .map(|(program, acts)| (*program, values(acts, name)))
            .collect();
        // What nobody else does is held against the PRM.
        let alone = values.keys().eq([&Program::Ferroce]);
        if differ(&values) || alone && name.contains(RESERVED) {
            different.insert(name.clone(), values);
        } else {
            alike += 1;
        }
    }
    Row {
        role,
        programs: playing.keys().copied().collect(),
        different,
        alike,
    }
}

/// The values of a field in a program's acts; a field that is not named is 0.
fn values(acts: &[&Act], name: &str) -> BTreeSet<String> {
    let value = |act: &&Act| act.fields.get(name).cloned().unwrap_or_else(|| "0".to_string());
    acts.iter().map(value).collect()
}

/// What a program does otherwise in another recording: roles that are new or gone, and other values.
pub fn changes(before: &[Act], after: &[Act]) -> Vec<String> {
    type Seen<'a> = BTreeMap<(&'a str, &'a str), BTreeSet<&'a str>>;
    fn seen(acts: &[Act]) -> Seen<'_> {
        let mut seen = Seen::new();
        for act in acts {
            seen.entry((&act.role, "")).or_default();
            for (field, value) in &act.fields {
                seen.entry((&act.role, field)).or_default().insert(value);
            }
        }
        seen
    }
    let (old, new) = (seen(before), seen(after));
    let text = |values: Option<&BTreeSet<&str>>| match values {
        None => "nothing".to_string(),
        Some(values) => values.iter().copied().collect::<Vec<_>>().join(", "),
    };
    let keys: BTreeSet<&(&str, &str)> = old.keys().chain(new.keys()).collect();
    keys.into_iter()
        .filter_map(|key| match (old.get(key), new.get(key), key) {
            (None, Some(_), (role, "")) => Some(format!("{role}: new")),
            (Some(_), None, (role, "")) => Some(format!("{role}: gone")),
            // Of these, all fields are.
            (old_values, new_values, (role, field))
                if old_values != new_values
                    && old.contains_key(&(*role, ""))
                    && new.contains_key(&(*role, "")) =>
            {
                let (was, is) = (text(old_values), text(new_values));
                Some(format!("{role}: {field}: was {was}; is {is}"))
            }
            _ => None,
        })
        .collect()
}

/// Programs that agree share a value, and ferroce has none that no other program has.
fn differ(values: &Values) -> bool {
    let sets: Vec<&BTreeSet<String>> = values.values().collect();
    let apart = sets
        .iter()
        .enumerate()
        .any(|(i, one)| sets[i + 1..].iter().any(|other| one.is_disjoint(other)));
    let others: BTreeSet<&String> = values
        .iter()
        .filter(|(program, _)| **program != Program::Ferroce)
        .flat_map(|(_, values)| values)
        .collect();
    let own = values.get(&Program::Ferroce);
    let alone = !others.is_empty() && own.is_some_and(|own| own.iter().any(|value| !others.contains(value)));
    apart || alone
}

/// Commands of bringing the NIC up and down that ferroce first gives elsewhere than another program: those that are not in the longest sequence that
/// both have in the same order.
fn moved(first: &BTreeMap<Program, BTreeMap<String, usize>>) -> BTreeSet<(Program, String)> {
    let mut moved = BTreeSet::new();
    let Some(ours) = first.get(&Program::Ferroce) else {
        return moved;
    };
    for (program, theirs) in first.iter().filter(|(program, _)| **program != Program::Ferroce) {
        let common: Vec<&String> = in_order(ours)
            .into_iter()
            .filter(|role| has_place(role) && theirs.contains_key(*role))
            .collect();
        let places: Vec<usize> = common.iter().map(|role| theirs[*role]).collect();
        let kept = longest_increasing(&places);
        for (at, role) in common.into_iter().enumerate() {
            if !kept.contains(&at) {
                moved.insert((*program, role.clone()));
            }
        }
    }
    moved
}

/// Indices of a longest increasing subsequence, the last of several.
fn longest_increasing(values: &[usize]) -> BTreeSet<usize> {
    let mut best: Vec<(usize, Option<usize>)> = Vec::new();
    for (at, value) in values.iter().enumerate() {
        let before = (0..at).filter(|i| values[*i] < *value).max_by_key(|i| best[*i].0);
        best.push((before.map_or(1, |i| best[i].0 + 1), before));
    }
    let mut at = (0..values.len()).max_by_key(|i| best[*i].0);
    let mut kept = BTreeSet::new();
    while let Some(i) = at {
        kept.insert(i);
        at = best[i].1;
    }
    kept
}

impl Row {
    /// Whether ferroce does not do this, or alone does it. What the recording of the real card lacks says nothing: it
    /// ends with the creation of event queues.
    pub fn presence(&self) -> Option<Presence> {
        if !self.programs.contains(&Program::Ferroce) {
            return Some(Presence::Lacking);
        }
        (!self.programs.contains(&Program::Linux)).then_some(Presence::Extra)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::Fields;

    fn act(role: &str, fields: &[(&str, &str)]) -> Act {
        let fields: Fields = fields
            .iter()
            .map(|(k, v)| (k.to_string(), v.to_string()))
            .collect();
        Act {
            role: role.into(),
            fields,
            records: 0..0,
        }
    }

    fn compared(linux: Vec<Act>, ferroce: Vec<Act>) -> Comparison {
        compare(&[(Program::Linux, linux), (Program::Ferroce, ferroce)].into())
    }

    #[test]
    fn values_that_others_have_too_are_alike() {
        let linux = vec![
            act("CREATE_CQ", &[("a", "0x1"), ("b", "0x1")]),
            act("CREATE_CQ", &[("a", "0x2")]),
        ];
        let comparison = compared(
            linux.clone(),
            vec![act("CREATE_CQ", &[("a", "0x2"), ("b", "0x1")])],
        );
        let row = &comparison.rows[0];
        assert_eq!((row.different.len(), row.alike), (0, 2));
        // 0, since it is not named, is what Linux never has.
        let comparison = compared(linux, vec![act("CREATE_CQ", &[("b", "0x1")])]);
        assert_eq!(comparison.rows[0].different.keys().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn what_only_one_does_is_seen() {
        let comparison = compared(vec![act("A_LINUX", &[])], vec![act("A_FERROCE", &[])]);
        let presence: Vec<_> = comparison
            .rows
            .iter()
            .map(|row| (row.role.as_str(), row.presence()))
            .collect();
        assert_eq!(
            presence,
            [
                ("A_FERROCE", Some(Presence::Extra)),
                ("A_LINUX", Some(Presence::Lacking))
            ]
        );
    }

    #[test]
    fn a_command_at_another_place_is_seen() {
        let acts = |roles: &[&str]| roles.iter().map(|role| act(role, &[])).collect::<Vec<_>>();
        let comparison = compared(
            acts(&["AAA", "BBB", "CCC", "DDD", "BBB", "CREATE_QP"]),
            acts(&["CREATE_QP", "AAA", "CCC", "DDD", "BBB", "CCC"]),
        );
        assert_eq!(comparison.moved, [(Program::Linux, "BBB".to_string())].into());
        assert_eq!(comparison.first[&Program::Ferroce]["BBB"], 5);
    }

    #[test]
    fn another_recording_shows_its_changes() {
        let old = [act("A", &[("x", "1")]), act("B", &[]), act("C", &[("y", "1")])];
        let new = [
            act("A", &[("x", "1")]),
            act("A", &[("x", "2"), ("z", "0x3")]),
            act("C", &[("y", "1")]),
            act("D", &[("w", "1")]),
        ];
        assert!(changes(&old, &old).is_empty());
        assert_eq!(
            changes(&old, &new),
            [
                "A: x: was 1; is 1, 2",
                "A: z: was nothing; is 0x3",
                "B: gone",
                "D: new"
            ]
        );
    }

    #[test]
    fn registers_come_first_and_the_data_path_last() {
        let linux = vec![
            act("WQE SEND (RC)", &[]),
            act("CREATE_QP (RC)", &[]),
            act("register 0x10", &[]),
        ];
        let roles: Vec<_> = compared(linux, vec![])
            .rows
            .into_iter()
            .map(|row| row.role)
            .collect();
        assert_eq!(roles, ["register 0x10", "CREATE_QP (RC)", "WQE SEND (RC)"]);
    }
}
