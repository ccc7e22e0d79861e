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
    /// Which entries were asked for.
    #[serde(skip)]
    used: RefCell<BTreeSet<(&'static str, usize)>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Difference {
    /// Patterns of roles; `*` stands for anything.
    roles: Vec<String>,
    /// Patterns of fields, and the value that ferroce has to have: `*` in it for anything; `*` alone also where ferroce does not play the role.
    ours: BTreeMap<String, String>,
    why: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Roles {
    roles: Vec<String>,
    why: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    /// The program whose order it is not.
    against: String,
    roles: Vec<String>,
    why: String,
}

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

fn any(patterns: &[String], text: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern, text))
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

    fn find<T>(&self, kind: &'static str, entries: &[T], is_it: impl Fn(&T) -> bool) -> Option<usize> {
        let found = entries.iter().position(is_it)?;
        self.used.borrow_mut().insert((kind, found));
        Some(found)
    }

    /// Why a field differs; `None` when no entry says so, or the entry is for another value of ferroce's.
    pub fn of_field(&self, role: &str, field: &str, values: &Values) -> Option<&str> {
        let ours = values.get(&Program::Ferroce).map(join);
        let value_fits =
            |wanted: &str| wanted == "*" || ours.as_deref().is_some_and(|ours| matches(wanted, ours));
        let fits = |entry: &Difference| {
            any(&entry.roles, role)
                && entry
                    .ours
                    .iter()
                    .any(|(pattern, wanted)| matches(pattern, field) && value_fits(wanted))
        };
        let found = self.find("difference", &self.difference, fits)?;
        Some(&self.difference[found].why)
    }

    /// Why ferroce does not do what others do, or does alone what it does.
    pub fn of_presence(&self, presence: Presence, role: &str) -> Option<&str> {
        let (kind, entries) = match presence {
            Presence::Lacking => ("lacking", &self.lacking),
            Presence::Extra => ("extra", &self.extra),
        };
        let found = self.find(kind, entries, |entry| any(&entry.roles, role))?;
        Some(&entries[found].why)
    }

    /// Why ferroce gives a command at another place than a program.
    pub fn of_order(&self, against: Program, role: &str) -> Option<&str> {
        let fits = |entry: &Order| entry.against == against.name() && any(&entry.roles, role);
        let found = self.find("order", &self.order, fits)?;
        Some(&self.order[found].why)
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

    fn stale(&self) -> Vec<String> {
        let used = self.used.borrow();
        let of_roles = |kind, entries: &[Roles]| -> Vec<(&'static str, usize, String)> {
            let numbered = entries.iter().enumerate();
            numbered.map(|(i, entry)| (kind, i, entry.why.clone())).collect()
        };
        let mut all: Vec<(&'static str, usize, String)> = Vec::new();
        let differences = self.difference.iter().enumerate();
        all.extend(differences.map(|(i, entry)| ("difference", i, entry.why.clone())));
        all.extend(of_roles("lacking", &self.lacking));
        all.extend(of_roles("extra", &self.extra));
        all.extend(
            self.order
                .iter()
                .enumerate()
                .map(|(i, entry)| ("order", i, entry.why.clone())),
        );
        all.into_iter()
            .filter(|(kind, i, _)| !used.contains(&(*kind, *i)))
            .map(|(kind, _, why)| format!("the reason is of nothing any more: [[{kind}]] {why}"))
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
        "#;
        let reasons = Reasons::parse(text).unwrap();
        let nothing = crate::compare::compare(&BTreeMap::new());
        assert_eq!(
            reasons.unexplained(&nothing),
            ["the reason is of nothing any more: [[lacking]] Once."]
        );
        assert!(Reasons::parse("[[differences]]").is_err());
    }
}
