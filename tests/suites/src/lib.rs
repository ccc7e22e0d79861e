//! Test suites of ferroce: the driver on the device model, models on a bad wire, captures of real machines.
//!
//! The tests themselves are in `tests/`; here is what several of them use.

pub mod bare_host;
pub mod cm;
pub mod fake;
pub mod flaps;
pub mod fuzz;
pub mod nics;
pub mod pair;
pub mod traffic;
pub mod two_ports;

/// The code in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

/// The code in docs/clock.md compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/clock.md")]
pub struct Clock;

/// The code in docs/lossless.md compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/lossless.md")]
mod lossless {}

/// The code in docs/connections.md compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/connections.md")]
pub struct Connections;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    #[test]
    fn code_of_each_document_is_compiled() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let documents = fs::read_dir(docs).unwrap().map(|entry| entry.unwrap().path());
        let with_code: Vec<_> = documents
            .filter(|path| fs::read_to_string(path).is_ok_and(|text| text.contains("```rust")))
            .collect();
        assert!(with_code.len() > 1, "{with_code:?}");
        for path in with_code {
            let name = path.file_name().unwrap().to_str().unwrap();
            let included = format!("include_str!(\"../../../docs/{name}\")");
            assert!(
                include_str!("lib.rs").contains(&included),
                "{name} is not among them"
            );
        }
    }
}
