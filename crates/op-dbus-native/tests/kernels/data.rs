//! Test data: reproducible numbers, and memory that ends where it is said to end.

use std::ffi::{c_int, c_long, c_void};
use std::ops::{Deref, DerefMut};

/// The bytes before the guard are a multiple of this, which no page size of these targets exceeds.
const PAGE: usize = 65_536;

unsafe extern "C" {
    fn mmap(
        at: *mut c_void,
        length: usize,
        rights: c_int,
        flags: c_int,
        file: c_int,
        offset: c_long,
    ) -> *mut c_void;
    fn mprotect(at: *mut c_void, length: usize, rights: c_int) -> c_int;
    fn munmap(at: *mut c_void, length: usize) -> c_int;
}

/// Numbers whose every bit pattern is one.
pub trait Plain: Copy + Default {}
impl Plain for f32 {}
impl Plain for u8 {}

/// An array whose last element is the last before memory that nobody may touch, so that a kernel
/// that reads or writes beyond it is stopped by the CPU. It is aligned to its element and no more.
pub struct Guarded<T: Plain> {
    mapping: *mut u8,
    bytes: usize,
    length: usize,
    element: std::marker::PhantomData<T>,
}

impl<T: Plain> Guarded<T> {
    /// Zeros.
    pub fn new(length: usize) -> Self {
        let bytes = (length * size_of::<T>()).next_multiple_of(PAGE) + PAGE;
        // SAFETY: a new private mapping (rights 3, flags 0x22: read, write; private, anonymous)
        // whose last page is then made inaccessible (rights 0).
        let mapping = unsafe {
            let mapping = mmap(std::ptr::null_mut(), bytes, 3, 0x22, -1, 0).cast::<u8>();
            assert!(mapping.addr() != usize::MAX, "no memory for {bytes} bytes");
            assert_eq!(mprotect(mapping.add(bytes - PAGE).cast(), PAGE, 0), 0, "no guard page");
            mapping
        };
        Self { mapping, bytes, length, element: std::marker::PhantomData }
    }

    /// Each element from its index.
    pub fn from_fn(length: usize, value: impl FnMut(usize) -> T) -> Self {
        let mut array = Self::new(length);
        array.iter_mut().zip((0..length).map(value)).for_each(|(to, value)| *to = value);
        array
    }

    fn start(&self) -> *mut T {
        let offset = self.bytes - PAGE - self.length * size_of::<T>();
        // SAFETY: within the mapping; the guard begins at a multiple of every element's alignment.
        unsafe { self.mapping.add(offset).cast() }
    }
}

impl<T: Plain> Deref for Guarded<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping holds `length` elements before the guard; all patterns are values.
        unsafe { std::slice::from_raw_parts(self.start(), self.length) }
    }
}

impl<T: Plain> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; the mapping has this one owner.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.length) }
    }
}

impl<T: Plain> Drop for Guarded<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, with its length.
        unsafe { munmap(self.mapping.cast(), self.bytes) };
    }
}

/// A source of numbers: the same ones for the same seed. They are made once and then read in turn,
/// because an emulated CPU makes few of them in a second.
pub struct Random {
    values: Vec<f32>,
    next: usize,
    state: u64,
}

/// A prime, so that no size of a row or a panel divides it.
const VALUES: usize = 4093;

impl Random {
    pub fn new(seed: u64) -> Self {
        let state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut random = Self { values: Vec::new(), next: 0, state };
        random.values = (0..VALUES).map(|_| random.make()).collect();
        random
    }

    /// Bell-shaped around 0, of deviation 1, and now and then much larger, as in real models.
    fn make(&mut self) -> f32 {
        let uniform = |bits: u32| bits as f32 / u32::MAX as f32 - 0.5;
        let bell = (0..4).map(|_| uniform(self.bits())).sum::<f32>() * 1.732;
        if self.bits().is_multiple_of(97) { bell * 12.0 } else { bell }
    }

    fn bits(&mut self) -> u32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 32) as u32
    }

    /// Of `least` to `most`, both included.
    pub fn between(&mut self, least: usize, most: usize) -> usize {
        least + self.bits() as usize % (most - least + 1)
    }

    /// The next value.
    pub fn value(&mut self) -> f32 {
        self.next = if self.next + 1 == VALUES { 0 } else { self.next + 1 };
        self.values[self.next]
    }
}

/// Panics unless `found` lies within `allowed` of `expected`; `place` says where.
pub fn assert_near(found: f32, expected: f64, allowed: f64, place: impl Fn() -> String) {
    let apart = (f64::from(found) - expected).abs();
    assert!(
        apart <= allowed,
        "{}: {found:e} where {expected:e} is right, {apart:e} apart, {allowed:e} allowed",
        place()
    );
}

/// `Φ(x)` of the normal distribution, to about 1e-15: by its series near 0, by its continued
/// fraction in the tails.
pub fn normal_integral(x: f64) -> f64 {
    let density = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if x.abs() > 4.0 {
        let fraction = (1..80).rev().fold(x.abs(), |tail, k| x.abs() + f64::from(k) / tail);
        let tail = density / fraction;
        return if x > 0.0 { 1.0 - tail } else { tail };
    }
    let (mut term, mut sum) = (x, x);
    for k in 1..120 {
        term *= x * x / f64::from(2 * k + 1);
        sum += term;
    }
    0.5 + density * sum
}
