//! The cases of `tests/fuzz/corpus`, run by the tests of the crate that includes this.

use std::fs;
use std::path::Path;

/// Hands every case that is kept for a target to it.
///
/// # Panics
/// One does harm, or there are none.
pub fn replay<F: Fn(&[u8])>(targets: &[(&str, F)]) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus");
    for (name, target) in targets {
        let cases = fs::read_dir(corpus.join(name)).expect("a folder of cases for each target");
        let mut count = 0;
        for case in cases {
            target(&fs::read(case.expect("a case").path()).expect("a case"));
            count += 1;
        }
        assert!(count > 0, "{name} has no case");
    }
}
