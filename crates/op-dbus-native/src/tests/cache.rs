//! Packed weights in the cache: found again, and never believed.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::UNIX_EPOCH;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use op_dbus_graph::Family;

use super::made_up::{SIZES, Weights, options};
use crate::kernels::{Layout, kernels};
use crate::load::{self, Source};
use crate::packed::{Packed, Place};
use crate::{Isa, Precision};

fn layout() -> Layout {
    kernels(Isa::best(), Precision::F32).layout
}

fn saved(folder: &Path) -> (Place, PathBuf, Packed) {
    let weights = Weights::new(SIZES[3], 1);
    let place = Place::new(folder, "key", layout());
    let packed = Packed::build(&weights.encoder(), layout(), None).unwrap();
    packed.save(&place).unwrap();
    let file = fs::read_dir(folder.join("weights")).unwrap().next().unwrap().unwrap().path();
    (place, file, packed)
}

#[test]
#[cfg_attr(miri, ignore = "maps a file, which Miri does not")]
fn saved_weights_are_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let (place, _, packed) = saved(folder.path());
    let found = Packed::open(&place, layout()).unwrap().unwrap();
    assert_eq!(found.shape, packed.shape);
    assert_eq!(found.part(&(0..found.plan.bytes)), packed.part(&(0..packed.plan.bytes)));
    let other = Place::new(folder.path(), "another key", layout());
    assert!(Packed::open(&other, layout()).unwrap().is_none());
}

#[test]
#[cfg_attr(miri, ignore = "maps a file, which Miri does not")]
fn a_file_with_a_flipped_byte_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (place, file, _) = saved(folder.path());
    let whole = fs::read(&file).unwrap();
    // What lies between the header and the weights means nothing.
    let header = whole[..4096].iter().rposition(|&byte| byte == b'}').unwrap();
    let weights = 4096..whole.len();
    for at in (0..=header).chain(weights.step_by(2003)) {
        // The second makes another number of a digit.
        for bit in [0x10, 1] {
            let mut damaged = whole.clone();
            damaged[at] ^= bit;
            fs::write(&file, damaged).unwrap();
            assert!(Packed::open(&place, layout()).is_err(), "byte {at}");
        }
    }
    for length in [0, 1, 15, 16, 17, 4095, 4096, 4097, whole.len() - 1] {
        fs::write(&file, &whole[..length]).unwrap();
        assert!(Packed::open(&place, layout()).is_err(), "{length} bytes");
    }
    fs::write(&file, whole).unwrap();
    assert!(Packed::open(&place, layout()).unwrap().is_some());
}

/// Neither the length nor the checksum of the weights is known before their parts are.
#[test]
#[cfg_attr(miri, ignore = "maps a file, which Miri does not")]
fn a_header_that_lies_of_its_sizes_costs_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (place, file, packed) = saved(folder.path());
    let whole = fs::read(&file).unwrap();
    let end = whole[..4096].iter().rposition(|&byte| byte == b'}').unwrap();
    let header = String::from_utf8(whole[16..=end].to_vec()).unwrap();
    let truth = format!("\"layers\":{}", packed.shape.layers);
    assert!(header.contains(&truth), "{header}");
    let lie = header.replacen(&truth, "\"layers\":1000000000000", 1);
    let mut lying = [&whole[..16], lie.as_bytes()].concat();
    lying.resize(4096, 0);
    lying.extend_from_slice(&whole[4096..]);
    fs::write(&file, lying).unwrap();
    let error = Packed::open(&place, layout()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    packed.save(&place).unwrap();
    assert!(Packed::open(&place, layout()).unwrap().is_some());
}

#[test]
#[cfg_attr(miri, ignore = "maps a file, which Miri does not")]
fn a_file_that_others_may_write_is_not_mapped() {
    let folder = tempfile::tempdir().unwrap();
    let (place, file, packed) = saved(folder.path());
    fs::set_permissions(&file, fs::Permissions::from_mode(0o646)).unwrap();
    let error = Packed::open(&place, layout()).unwrap_err();
    assert!(error.to_string().contains("others than its owner may write it"), "{error}");
    packed.save(&place).unwrap();
    assert!(Packed::open(&place, layout()).unwrap().is_some());
}

#[test]
#[cfg_attr(miri, ignore = "makes a pipe, which Miri does not")]
fn a_pipe_in_the_place_of_a_file_keeps_nobody_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let (place, file, packed) = saved(folder.path());
    fs::remove_file(&file).unwrap();
    mkfifo(&file, Mode::S_IRWXU).unwrap();
    assert!(Packed::open(&place, layout()).is_err());
    packed.save(&place).unwrap();
    assert!(Packed::open(&place, layout()).unwrap().is_some());
}

#[test]
#[cfg_attr(miri, ignore = "maps a file, which Miri does not")]
fn the_cache_keeps_what_was_used_last() {
    let folder = tempfile::tempdir().unwrap();
    let (place, file, packed) = saved(folder.path());
    File::options().write(true).open(&file).unwrap().set_modified(UNIX_EPOCH).unwrap();
    Packed::open(&place, layout()).unwrap().unwrap();
    assert!(fs::metadata(&file).unwrap().modified().unwrap() > UNIX_EPOCH, "used just now");
    for key in 0..13 {
        packed.save(&Place::new(folder.path(), &key.to_string(), layout())).unwrap();
    }
    assert_eq!(fs::read_dir(folder.path().join("weights")).unwrap().count(), 12);
}

#[test]
fn an_unwritable_cache_leaves_the_weights_usable() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a file, not a folder");
    fs::write(&file, "").unwrap();
    let weights = Weights::new(SIZES[1], 1);
    let packed = Packed::build(&weights.encoder(), layout(), None).unwrap();
    assert!(packed.save(&Place::new(&file, "key", layout())).is_err());
    assert!(packed.part(&(0..packed.plan.bytes)).iter().any(|byte| *byte != 0));
}

/// As several workers do that are the first of their model.
#[test]
#[cfg_attr(miri, ignore = "maps a file, which Miri does not")]
fn of_those_that_load_at_the_same_time_one_packs() {
    const CASE: &[u8] = include_bytes!("../../../../tests/fuzz/corpus/computed/bert");
    let mut parts = CASE.splitn(2, |byte| *byte == 0);
    let (config, model) = (parts.next().unwrap(), parts.next().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let weights = Weights::new(SIZES[1], 1);
    let mut options = options(&weights.encoder(), Isa::best(), Precision::F32, 1);
    options.cache_dir = folder.path().join("model");
    let (begin, packing) = (Barrier::new(2), AtomicUsize::new(0));
    let source = || {
        packing.fetch_add(1, Ordering::SeqCst);
        // The other one has time to get here as well.
        for _ in 0..1000 {
            if packing.load(Ordering::SeqCst) < 2 {
                thread::yield_now();
            }
        }
        Ok(Source {
            family: Family::Bert,
            config: serde_json::from_slice(config).unwrap(),
            weights: model.to_vec(),
            dense: Vec::new(),
            calibration: Vec::new(),
        })
    };
    let load = || {
        begin.wait();
        load::packed(&options, source).unwrap()
    };
    let [one, other] = thread::scope(|scope| {
        [scope.spawn(load), scope.spawn(load)].map(|thread| thread.join().unwrap())
    });
    assert_eq!(packing.load(Ordering::SeqCst), 1);
    assert_eq!(one.part(&(0..one.plan.bytes)), other.part(&(0..other.plan.bytes)));
}
