//! MPNet: positions that begin behind the padding's, and a relative position bias.

use super::{Config, LayerNames, Reader};
use crate::Error;
use crate::encoder::{Encoder, RelativeBias, Tensor};
use crate::error::unsupported;
use crate::weights::Weights;

const NAMES: LayerNames = LayerNames {
    layers: "encoder.layer",
    query: "attention.attn.q",
    key: "attention.attn.k",
    value: "attention.attn.v",
    output: "attention.attn.o",
    attention_norm: "attention.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    output_norm: "output.LayerNorm",
};

/// Fixed by the architecture, whatever `config.json` says.
const PAD_TOKEN: usize = 1;
/// Buckets of the relative position bias; half for keys before the query, half for those behind.
const BUCKETS: usize = 32;
/// Distance from which on all keys share the last bucket.
const DISTANCE_MAX: usize = 128;

/// Reads an MPNet encoder.
///
/// # Errors
/// Another architecture's configuration, or tensors that do not fit.
pub(super) fn read<'a>(config: &Config, weights: &Weights<'a>) -> Result<Encoder<'a>, Error> {
    config.expect_model_type(&["mpnet"])?;
    let buckets = config.relative_attention_num_buckets.unwrap_or(BUCKETS);
    if buckets != BUCKETS {
        return Err(unsupported("relative_attention_num_buckets", buckets, "32"));
    }
    let reader = Reader::new(config, weights, "mpnet.")?;
    let heads = config.num_attention_heads;
    let bias = reader.table("encoder.relative_attention_bias.weight", BUCKETS, heads)?;
    let encoder = reader.encoder(&NAMES, Some(PAD_TOKEN), 0)?;
    Ok(Encoder { relative_bias: Some(by_distance(&bias)), ..encoder })
}

/// Spreads the `[buckets, heads]` table of the model over the distances.
fn by_distance(table: &Tensor<'_>) -> RelativeBias {
    let rows: Vec<Vec<f32>> = (0..BUCKETS).map(|bucket| table.row(bucket).collect()).collect();
    let reach = DISTANCE_MAX.cast_signed();
    let head = |head: usize| {
        (-reach..=reach).map(|distance| rows[bucket(distance)][head]).collect::<Vec<f32>>()
    };
    RelativeBias { reach: DISTANCE_MAX, values: (0..table.columns()).map(head).collect() }
}

/// Bucket of a key that lies `distance` tokens behind the query: one bucket per distance up to 7,
/// then wider and wider ones.
fn bucket(distance: isize) -> usize {
    const SIDE: usize = BUCKETS / 2;
    const EXACT: usize = SIDE / 2;
    let behind = if distance > 0 { SIDE } else { 0 };
    let apart = distance.unsigned_abs();
    if apart < EXACT {
        return behind + apart;
    }
    // In 32-bit floats, as the models were trained: at a bucket's edge the rounding decides.
    let spread = (DISTANCE_MAX as f32 / EXACT as f32).ln();
    let wide = (apart as f32 / EXACT as f32).ln() / spread * (SIDE - EXACT) as f32;
    behind + (EXACT + wide as usize).min(SIDE - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_exact_near_by_and_logarithmic_further_off() {
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(-7), 7);
        assert_eq!(bucket(7), 23);
        assert_eq!(bucket(-8), 8);
        assert_eq!(bucket(1), 17);
        assert_eq!(bucket(-128), 15);
        assert_eq!(bucket(4000), 31);
    }
}
