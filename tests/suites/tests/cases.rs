//! The table of cases from the field, `docs/cases.md`, against the tests that there are.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Names of all functions in Rust files below `folder`, and of the files themselves: compile-fail tests are files.
fn collect(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let is = |name: &str| path.file_name().is_some_and(|have| have == name);
        if path.is_dir() && !is("target") {
            collect(&path, names);
        }
        if path.extension().is_some_and(|end| end == "rs") {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
            let text = fs::read_to_string(&path).expect("a text");
            let functions = text.split("fn ").skip(1);
            let name = |rest: &str| {
                rest.chars()
                    .take_while(|c| c.is_alphanumeric() || *c == '_')
                    .collect()
            };
            names.extend(functions.map(name));
        }
    }
}

#[test]
fn every_case_has_its_tests_or_says_why_not() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut names = BTreeSet::new();
    for folder in ["driver", "firmware-iface", "hw-regs", "tests"] {
        collect(&root.join(folder), &mut names);
    }
    let table = fs::read_to_string(root.join("docs/cases.md")).expect("the table");
    let mut ids = BTreeSet::new();
    for row in table.lines().filter(|line| line.starts_with("| ")).skip(2) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [id, what, tests] = cells[..] else {
            panic!("three cells: {row}")
        };
        assert!(id.len() == 3 && ids.insert(id), "an id, once: {row}");
        assert!(!what.is_empty(), "{row}");
        let named: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(
            !named.is_empty() || tests.contains("not yet"),
            "neither a test nor a reason: {row}"
        );
        for name in named {
            assert!(names.contains(name), "{id}: there is no test {name}");
        }
    }
    for (area, least) in [
        ('Q', 14),
        ('M', 10),
        ('T', 11),
        ('V', 10),
        ('G', 6),
        ('A', 4),
        ('D', 3),
        ('C', 7),
    ] {
        let there = ids.iter().filter(|id| id.starts_with(area)).count();
        assert!(there >= least, "area {area} has {there} cases");
    }
}
