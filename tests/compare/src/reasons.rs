//! The reasons for the differences, as they stand in `tests/compare/reasons.toml`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::compare::{Comparison, Presence, Row, Values};
use crate::programs::Program;

/// The file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reasons {
    /// Values that differ.
    difference: Vec<Difference>,
    /// What ferroce does not do.
    lacking: Vec<Roles>,
    /// What only ferroce does.
    extra: Vec<Roles>,
    /// What ferroce does at another place.
    order: Vec<Order>,
    /// Which patterns were asked for: the kind of entry, which one, the pattern.
    #[serde(skip)]
    used: RefCell<BTreeSet<(&'static str, usize, String)>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Difference {
    /// Patterns of roles; `*` stands for anything.
    roles: Vec<String>,
    /// Patterns of fields, and what ferroce has to have in them: its values in their order, with commas between;
    /// [`NOT_THERE`] where it does not play the role.
    ours: BTreeMap<String, String>,
    why: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Roles {
    roles: Vec<String>,
    why: String,
    /// Whether programs do it depends on when things happen, so that a recording may lack it.
    #[serde(default)]
    by_chance: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    /// The program whose order it is not.
    against: String,
    roles: Vec<String>,
    why: String,
    /// Whether it is at another place depends on when things happen.
    #[serde(default)]
    by_chance: bool,
}

/// What stands for the values of ferroce where it does not play the role.
const NOT_THERE: &str = "none";

/// Whether a text is what a pattern says; `*` in the pattern stands for anything.
pub fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(rest) = text.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    let mut rest = rest;
    for part in middle {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// The first of the patterns that a text is what it says.
fn first<'a>(patterns: &'a [String], text: &str) -> Option<&'a str> {
    patterns
        .iter()
        .map(String::as_str)
        .find(|pattern| matches(pattern, text))
}

/// The values as one text.
pub fn join(values: &BTreeSet<String>) -> String {
    values.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

impl Reasons {
    /// Reads the file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Reasons, toml::de::Error> {
        toml::from_str(text)
    }

    /// The reason in the first entry that fits; its patterns that do so are of use.
    fn find<'a, T>(
        &'a self,
        kind: &'static str,
        entries: &'a [T],
        fits: impl Fn(&'a T) -> Option<(Vec<&'a str>, &'a str)>,
    ) -> Option<&'a str> {
        let mut numbered = entries.iter().enumerate();
        let (at, (patterns, why)) = numbered.find_map(|(at, entry)| Some((at, fits(entry)?)))?;
        let of_use = patterns
            .into_iter()
            .map(|pattern| (kind, at, pattern.to_string()));
        self.used.borrow_mut().extend(of_use);
        Some(why)
    }

    /// Why a field differs; `None` when no entry says so, or the entry is for another value of ferroce's.
    pub fn of_field(&self, role: &str, field: &str, values: &Values) -> Option<&str> {
        let ours = values
            .get(&Program::Ferroce)
            .map_or_else(|| NOT_THERE.to_string(), join);
        self.find("difference", &self.difference, |entry| {
            let of_role = first(&entry.roles, role)?;
            let mut fields = entry.ours.iter();
            let (of_field, _) =
                fields.find(|(pattern, wanted)| matches(pattern, field) && **wanted == ours)?;
            Some((vec![of_role, of_field.as_str()], entry.why.as_str()))
        })
    }

    /// Why ferroce does not do what others do, or does alone what it does.
    pub fn of_presence(&self, presence: Presence, role: &str) -> Option<&str> {
        let (kind, entries) = match presence {
            Presence::Lacking => ("lacking", &self.lacking),
            Presence::Extra => ("extra", &self.extra),
        };
        self.find(kind, entries, |entry| {
            Some((vec![first(&entry.roles, role)?], entry.why.as_str()))
        })
    }

    /// Why ferroce gives a command at another place than a program.
    pub fn of_order(&self, against: Program, role: &str) -> Option<&str> {
        let against_it = |entry: &&Order| entry.against == against.name();
        self.find("order", &self.order, |entry| {
            let of_role = Some(entry)
                .filter(against_it)
                .and_then(|entry| first(&entry.roles, role))?;
            Some((vec![of_role], entry.why.as_str()))
        })
    }

    /// What has no reason, and which entries are of nothing.
    pub fn unexplained(&self, comparison: &Comparison) -> Vec<String> {
        self.used.borrow_mut().clear();
        let mut wrong: Vec<String> = comparison
            .rows
            .iter()
            .flat_map(|row| self.unexplained_in(row))
            .collect();
        for (program, role) in &comparison.moved {
            if self.of_order(*program, role).is_none() {
                wrong.push(format!("{role}: at another place than {}'s", program.name()));
            }
        }
        wrong.extend(self.stale());
        wrong
    }

    fn unexplained_in(&self, row: &Row) -> Vec<String> {
        let mut wrong = Vec::new();
        match row.presence() {
            Some(presence) if self.of_presence(presence, &row.role).is_none() => {
                let names: Vec<&str> = row.programs.iter().map(|p| p.name()).collect();
                let what = match presence {
                    Presence::Lacking => "ferroce lacks it; it is of",
                    Presence::Extra => "Linux lacks it; it is of",
                };
                wrong.push(format!("{}: {what} {}", row.role, names.join(", ")));
            }
            _ => {}
        }
        for (field, values) in &row.different {
            if self.of_field(&row.role, field, values).is_none() {
                let all = values
                    .iter()
                    .map(|(p, values)| format!("{} {}", p.name(), join(values)));
                let all: Vec<String> = all.collect();
                wrong.push(format!("{}: {field}: {}", row.role, all.join("; ")));
            }
        }
        wrong
    }

    /// Patterns that are of nothing any more.
    fn stale(&self) -> Vec<String> {
        let mut all: Vec<(&'static str, usize, &String, &str)> = Vec::new();
        for (at, entry) in self.difference.iter().enumerate() {
            let patterns = entry.roles.iter().chain(entry.ours.keys());
            all.extend(patterns.map(|pattern| ("difference", at, pattern, entry.why.as_str())));
        }
        for (kind, entries) in [("lacking", &self.lacking), ("extra", &self.extra)] {
            let sure = entries.iter().enumerate().filter(|(_, entry)| !entry.by_chance);
            for (at, entry) in sure {
                let patterns = entry.roles.iter();
                all.extend(patterns.map(|pattern| (kind, at, pattern, entry.why.as_str())));
            }
        }
        let sure = self
            .order
            .iter()
            .enumerate()
            .filter(|(_, entry)| !entry.by_chance);
        for (at, entry) in sure {
            let patterns = entry.roles.iter();
            all.extend(patterns.map(|pattern| ("order", at, pattern, entry.why.as_str())));
        }
        let used = self.used.borrow();
        all.into_iter()
            .filter(|(kind, at, pattern, _)| !used.contains(&(*kind, *at, (*pattern).clone())))
            .map(|(kind, _, pattern, why)| {
                format!("the reason is of nothing any more: [[{kind}]] `{pattern}`: {why}")
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        assert!(matches("CREATE_CQ (*)", "CREATE_CQ (RC)"));
        assert!(matches("*", ""));
        assert!(matches("a*b*c", "a1b2c"));
        assert!(!matches("a*b*c", "a1c2b"));
        assert!(!matches("CREATE_CQ", "CREATE_CQ (RC)"));
        assert!(matches("change of *", "change of roce"));
    }

    #[test]
    fn a_reason_is_for_one_value_of_ours() {
        let text = r#"
            [[difference]]
            roles = ["CREATE_CQ (*)"]
            ours = { "cqc.oi" = "0x1" }
            why = "So it is."
        "#;
        let reasons = Reasons::parse(text).unwrap();
        let values = |ours: &str| -> Values {
            [
                (Program::Ferroce, [ours.to_string()].into()),
                (Program::Linux, ["0".to_string()].into()),
            ]
            .into()
        };
        assert_eq!(
            reasons.of_field("CREATE_CQ (RC)", "cqc.oi", &values("0x1")),
            Some("So it is.")
        );
        assert_eq!(reasons.of_field("CREATE_CQ (RC)", "cqc.oi", &values("0x2")), None);
        assert_eq!(reasons.of_field("CREATE_CQ (RC)", "cqc.cc", &values("0x1")), None);
    }

    #[test]
    fn a_reason_of_nothing_is_told() {
        let text = r#"
            [[lacking]]
            roles = ["X"]
            why = "Once."
            [[lacking]]
            roles = ["Y"]
            why = "Now and then."
            by_chance = true
        "#;
        let reasons = Reasons::parse(text).unwrap();
        let nothing = crate::compare::compare(&BTreeMap::new());
        assert_eq!(
            reasons.unexplained(&nothing),
            ["the reason is of nothing any more: [[lacking]] `X`: Once."]
        );
        assert!(Reasons::parse("[[differences]]").is_err());
    }
}
