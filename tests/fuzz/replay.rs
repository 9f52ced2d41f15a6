//! The cases of `tests/fuzz/corpus`, run by the tests of each crate that includes this in its module `fuzz`.

use std::fs;
use std::path::Path;

/// Every case that is kept for a target does none, and there is one for each.
#[test]
#[cfg_attr(miri, ignore = "takes minutes; the fuzzer runs them under AddressSanitizer")]
fn kept_cases_do_no_harm() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus");
    for (name, target) in super::TARGETS {
        let cases = fs::read_dir(corpus.join(name)).expect("a folder of cases for each target");
        let mut count = 0;
        for case in cases {
            target(&fs::read(case.expect("a case").path()).expect("a case"));
            count += 1;
        }
        assert!(count > 0, "{name} has no case");
    }
}
