//! The median of the rounds with what lies around it.

use serde::Serialize;

/// A figure over all rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// The spread of one figure per round; zeros for no rounds.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let (Some(min), Some(max)) = (values.first(), values.last()) else {
            return Self::default();
        };
        let middle = values.len() / 2;
        let median = match values.len().is_multiple_of(2) {
            true => f64::midpoint(values[middle - 1], values[middle]),
            false => values[middle],
        };
        Self { median, min: *min, max: *max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_lies_between_the_extremes() {
        let spread = Spread::of(vec![3.0, 1.0, 2.0]);
        assert_eq!(spread, Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of(vec![4.0, 1.0]).median, 2.5);
        assert_eq!(Spread::of(Vec::new()), Spread::default());
    }
}
