//! What must not compile: uses of memory and completions that the types forbid (cases A01, A02, Q25).

#[test]
fn misuse_does_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
}
