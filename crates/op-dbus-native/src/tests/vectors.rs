//! What the backend promises of its vectors.

use op_dbus_engine::{Backend, BackendError, Batch};

use super::made_up::{self, LONG, Random, SIZES, Sizes, VOCABULARY, Weights};
use super::reference;
use crate::tuning::{Together, Tuning};
use crate::{Isa, NativeBackend, Precision};

fn run(backend: &mut NativeBackend, texts: &[&[i32]]) -> Vec<Vec<f32>> {
    let ids = texts.concat();
    let lengths: Vec<i32> = texts.iter().map(|text| i32::try_from(text.len()).unwrap()).collect();
    let dimensions = backend.description().dimensions;
    let mut out = vec![f32::NAN; texts.len() * dimensions];
    backend.run(&Batch { ids: &ids, lengths: &lengths }, &mut out).unwrap();
    out.chunks(dimensions).map(<[f32]>::to_vec).collect()
}

fn slices(texts: &[Vec<i32>]) -> Vec<&[i32]> {
    texts.iter().map(Vec::as_slice).collect()
}

fn bits(vectors: &[Vec<f32>]) -> Vec<Vec<u32>> {
    vectors.iter().map(|vector| vector.iter().map(|value| value.to_bits()).collect()).collect()
}

/// Every instruction set that this CPU has, with every precision.
fn variants() -> impl Iterator<Item = (Isa, Precision)> {
    let of_isa = |isa| Precision::ALL.into_iter().map(move |precision| (isa, precision));
    Isa::available().into_iter().flat_map(of_isa)
}

#[test]
fn vectors_are_those_of_the_reference() {
    let lengths: &[usize] =
        if cfg!(miri) { &[1, 6] } else { &[1, 2, 3, 7, 8, 15, 16, 17, 31, 40, 5, 40] };
    let mut texts = made_up::texts(lengths, 3);
    // 1 is the padding token where there is one.
    texts.push(vec![1, 4, 1, 1, 7, 9, 1]);
    // The last has all that a model may have.
    let skipped = if cfg!(miri) { SIZES.len() - 1 } else { 0 };
    for (seed, sizes) in (1..).zip(SIZES).skip(skipped) {
        compare(sizes, seed, &texts);
    }
}

/// With all positions that the families have, and with distances beyond those that have a bias of their own.
#[test]
#[cfg_attr(miri, ignore = "takes hours; what is new here is the length")]
fn vectors_of_long_texts_are_those_of_the_reference() {
    compare(LONG, 6, &made_up::texts(&[130, 512, 257], 10));
}

/// Compares every variant with the reference. The bounds are on single columns of vectors of length one: some thirty
/// times what one number is rounded by as a 32-bit float (2^-24), five times that of a bfloat16 (2^-8), and ten steps
/// of an 8-bit integer (2^-8 of a block's range).
fn compare(sizes: Sizes, seed: u64, texts: &[Vec<i32>]) {
    let weights = Weights::new(sizes, seed);
    let expected: Vec<Vec<f64>> =
        texts.iter().map(|ids| reference::vector(&weights.encoder(), ids)).collect();
    for (isa, precision) in variants() {
        let found = run(&mut made_up::backend(&weights, isa, precision, 1), &slices(texts));
        let bound = match precision {
            Precision::F32 => 2e-6,
            Precision::Bf16 => 2e-2,
            Precision::Int8 => 4e-2,
        };
        for (text, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let worst = found.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs());
            let worst = worst.fold(0.0, f64::max);
            assert!(worst < bound, "{sizes:?} {isa} {precision} text {text}: {worst:e}");
        }
    }
}

/// It has no vector, and what it leaves in the memory of its rows changes nobody else's.
#[test]
fn a_text_beyond_all_numbers_is_told_and_leaves_nothing() {
    let weights = Weights::new(SIZES[0], 8).with_word(7, 3e38);
    for (isa, precision) in variants() {
        let mut backend = made_up::backend(&weights, isa, precision, 1);
        let (beyond, text) = ([3, 7, 5], [2, 3, 4, 5]);
        let before = run(&mut backend, &[&text]);
        assert!(before[0].iter().all(|value| value.is_finite()), "{isa} {precision}");
        let none = run(&mut backend, &[&beyond]);
        assert!(none[0].iter().all(|value| !value.is_finite()), "{isa} {precision}: {none:?}");
        assert_eq!(bits(&run(&mut backend, &[&text])), bits(&before), "{isa} {precision}");
    }
}

#[test]
fn neighbours_and_threads_change_no_bit() {
    let mut random = Random(17);
    let (count, length_max, sizes) = match option_env!("OP_DBUS_TESTS_EMULATED") {
        _ if cfg!(miri) => (3, 3, SIZES[1]),
        // `cargo xtask emulate --engine`
        Some(_) => (8, 40, SIZES[2]),
        None => (60, 40, SIZES[2]),
    };
    let lengths: Vec<usize> = (0..count).map(|_| 1 + random.below(length_max)).collect();
    let texts = made_up::texts(&lengths, 4);
    let weights = Weights::new(sizes, 5);
    for (isa, precision) in variants() {
        let mut alone = made_up::backend(&weights, isa, precision, 1);
        let each: Vec<Vec<f32>> = texts.iter().flat_map(|text| run(&mut alone, &[text])).collect();
        for threads in if cfg!(miri) { 2..3 } else { 1..4 } {
            let mut team = made_up::backend(&weights, isa, precision, threads);
            let together = run(&mut team, &slices(&texts));
            assert_eq!(bits(&together), bits(&each), "{isa} {precision}, {threads} threads");
            // One text has its matrices split; a few are dealt out or split as it comes.
            for count in [1, 2, 3, 5].into_iter().filter(|count| *count < texts.len()) {
                let first = random.below(texts.len() - count);
                let some = run(&mut team, &slices(&texts[first..first + count]));
                assert_eq!(bits(&some), bits(&each[first..first + count]), "{isa} {precision}");
            }
        }
    }
}

/// Texts of several strips of rows, in a model with a bias by distance: in every place of a batch and alone, computed
/// by all threads together and dealt out to them, with strips of any height.
#[test]
#[cfg_attr(miri, ignore = "takes hours; what is shared out Miri sees with shorter texts")]
fn long_texts_are_the_same_bits_wherever_they_stand() {
    const SHARED: Together = Together { short: 0, long: 0 };
    const DEALT: Together = Together { short: u64::MAX, long: u64::MAX };
    // As many ways as texts, so that each text has each place once.
    const WAYS: [(usize, Together, usize); 6] = [
        (1, DEALT, 192),
        (1, DEALT, 7),
        (2, SHARED, 96),
        (3, SHARED, 48),
        (2, DEALT, 96),
        (3, DEALT, 48),
    ];
    let texts = made_up::texts(&[130, 1, 512, 33, 200, 97], 11);
    assert_eq!(texts.len(), WAYS.len());
    let weights = Weights::new(LONG, 7);
    for (isa, precision) in variants() {
        let mut alone = made_up::backend(&weights, isa, precision, 1);
        let each = texts.iter().flat_map(|text| bits(&run(&mut alone, &[text])));
        let each: Vec<Vec<u32>> = each.collect();
        for (turn, (threads, together_percent, strip)) in WAYS.into_iter().enumerate() {
            let way = format!("{isa} {precision}, {threads} threads, strips of {strip}");
            let mut team = made_up::backend(&weights, isa, precision, threads);
            team.set_tuning(Tuning { strip, together_percent, ..Tuning::default() });
            let (mut turned, mut expected) = (slices(&texts), each.clone());
            turned.rotate_left(turn);
            expected.rotate_left(turn);
            for (place, found) in bits(&run(&mut team, &turned)).iter().enumerate() {
                let length = turned[place].len();
                assert!(*found == expected[place], "{way}: {length} tokens in place {place}");
            }
            for (text, expected) in turned.into_iter().zip(expected) {
                let length = text.len();
                assert!(bits(&run(&mut team, &[text])) == [expected], "{way}: {length} alone");
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has one instruction set")]
fn integers_are_summed_alike_on_all_instruction_sets() {
    let texts = made_up::texts(&[12, 40], 8);
    let weights = Weights::new(SIZES[2], 9);
    let mut plain = made_up::backend(&weights, Isa::Portable, Precision::Int8, 1);
    let expected = run(&mut plain, &slices(&texts));
    for isa in Isa::available() {
        let found = run(&mut made_up::backend(&weights, isa, Precision::Int8, 1), &slices(&texts));
        for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
            // Rounding may fall on the other side where the floats before it differ in a bit.
            assert!((found - expected).abs() < 4e-3, "{isa}: {found} and {expected}");
        }
    }
}

#[test]
fn what_is_no_batch_for_the_model_is_refused_and_the_backend_lives_on() {
    let weights = Weights::new(SIZES[0], 1);
    let mut backend = made_up::backend(&weights, Isa::best(), Precision::F32, 2);
    let vocabulary = i32::try_from(VOCABULARY).unwrap();
    let mut out = vec![0.0; SIZES[0].hidden];
    let long = vec![0; 41];
    let batches: [(&[i32], &[i32], &str); 5] = [
        (&[1, vocabulary], &[2], "token id 50"),
        (&[-1], &[1], "token id -1"),
        (&long, &[41], "41 tokens"),
        (&[1, 2], &[1, 1], "2 rows"),
        (&[1, 2, 3], &[2], "sum"),
    ];
    for (ids, lengths, word) in batches {
        match backend.run(&Batch { ids, lengths }, &mut out) {
            Err(BackendError::Failed(message)) => assert!(message.contains(word), "{message}"),
            other => panic!("{word}: {other:?}"),
        }
    }
    backend.run(&Batch { ids: &[1, 2, 3], lengths: &[3] }, &mut out).unwrap();
    assert!(out.iter().any(|value| *value != 0.0));
}
