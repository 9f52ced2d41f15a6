//! Where the CPU and an accelerator meet: what batches of growing sizes were seen to cost on each, and
//! from which size on another is faster.

use std::time::Duration;

use serde::Serialize;

use super::stage::Stage;
use super::variant::Facts;

/// Tokens of the batches that are told.
const SIZES: [usize; 10] = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];

/// What the pools of one variant cost.
#[derive(Serialize)]
pub struct Crossover {
    /// A few words for the variant.
    pub label: String,
    /// Tokens of a batch.
    pub tokens: [usize; SIZES.len()],
    pub devices: Vec<Device>,
    /// The device that is first at each size.
    pub first: Vec<String>,
}

/// What batches cost on one device.
#[derive(Serialize)]
pub struct Device {
    pub device: String,
    /// For each size, microseconds; beyond the largest batch that ran in proportion to it.
    pub batch_us: Vec<u128>,
}

impl Crossover {
    /// Of every engine here that had a choice.
    pub fn of(stage: &Stage) -> Vec<Self> {
        let facts: Vec<&Facts> = stage.targets.iter().map(|target| &target.facts).collect();
        let found = stage.targets.iter().filter_map(|target| {
            let costs: Vec<_> = SIZES.iter().map(|tokens| target.costs(*tokens)).collect();
            (costs[0].len() > 1).then(|| Self::from(target.facts.label(&facts), &costs))
        });
        found.collect()
    }

    /// From what each device takes, for each size.
    fn from(label: String, costs: &[Vec<(String, Duration)>]) -> Self {
        let device = |index: usize| Device {
            device: costs[0][index].0.clone(),
            batch_us: costs.iter().map(|costs| costs[index].1.as_micros()).collect(),
        };
        let first = costs.iter().filter_map(|costs| costs.iter().min_by_key(|(_, cost)| *cost));
        Self {
            label,
            tokens: SIZES,
            devices: (0..costs[0].len()).map(device).collect(),
            first: first.map(|(device, _)| device.clone()).collect(),
        }
    }

    /// One sentence: who is first, and from which size on.
    pub fn sentence(&self) -> String {
        let mut turns = self.tokens.iter().zip(&self.first);
        let Some((_, start)) = turns.next() else { return String::new() };
        let (mut sentence, mut last) = (start.clone(), start);
        for (tokens, device) in turns {
            if device != last {
                sentence.push_str(&format!(", from {tokens} tokens on {device}"));
                last = device;
            }
        }
        if last == start && !sentence.contains(',') {
            sentence.push_str(" at every size");
        }
        sentence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches that cost `fixed` and `each` for a token, in microseconds.
    fn costs(pools: &[(&str, u64, u64)]) -> Vec<Vec<(String, Duration)>> {
        let cost = |tokens: usize, (device, fixed, each): &(&str, u64, u64)| {
            ((*device).to_owned(), Duration::from_micros(fixed + each * tokens as u64))
        };
        SIZES.iter().map(|tokens| pools.iter().map(|pool| cost(*tokens, pool)).collect()).collect()
    }

    #[test]
    fn the_first_is_told_and_where_another_takes_over() {
        let sentence = |pools: &[_]| Crossover::from("x".into(), &costs(pools)).sentence();
        let (cpu, gpu) = (("cpu:0", 100, 100), ("cuda:0", 5_000, 5));
        assert_eq!(sentence(&[gpu, cpu]), "cpu:0, from 64 tokens on cuda:0");
        assert_eq!(sentence(&[("slow:0", 0, 200), cpu]), "cpu:0 at every size");
    }
}
