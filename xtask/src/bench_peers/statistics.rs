//! Medians with what lies around them, cosines and ranks.

// As the service tells it.
#[path = "../../../crates/op-dbus-api/src/cosine.rs"]
mod cosine;
// As `op-dbus bench` tells it.
#[path = "../../../crates/op-dbus/src/bench/ranks.rs"]
mod ranks;

// As it does.
#[path = "../../../crates/op-dbus/src/bench/spread.rs"]
mod spread;

pub use cosine::cosine;
pub use ranks::spearman;
pub use spread::Spread;

/// `median (least–most)` with so many digits after the point.
pub fn with_range(spread: &Spread, digits: usize) -> String {
    let Spread { median, min, max } = spread;
    format!("{median:.digits$} ({min:.digits$}–{max:.digits$})")
}

/// Mean and least cosine of rows with rows.
pub fn cosines(one: &[Vec<f32>], other: &[Vec<f32>]) -> (f64, f64) {
    let all: Vec<f64> = one.iter().zip(other).map(|(a, b)| cosine(a, b)).collect();
    let mean = all.iter().sum::<f64>() / all.len().max(1) as f64;
    (mean, all.iter().copied().fold(f64::INFINITY, f64::min))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_compared_with_rows() {
        let rows = |values: [[f32; 2]; 2]| values.map(|row| row.to_vec()).to_vec();
        let (mean, min) = cosines(&rows([[1.0, 0.0], [0.0, 2.0]]), &rows([[3.0, 0.0], [1.0, 0.0]]));
        assert_eq!((mean, min), (0.5, 0.0));
    }
}
