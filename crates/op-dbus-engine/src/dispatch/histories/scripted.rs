//! The backend of a history.

use super::super::*;
use super::world::{DEVICES, Panics};
use super::{DIMENSIONS, INPUT_MAX, fails, happens, world};
use crate::backend::Meanwhile;
use crate::batch::Batch;
use crate::config::{BatchLayout, BatchLimits};
use crate::sim::SimBackend;

/// A backend that lets other things happen while it computes, and fails when the history says so: at times
/// for good, in the words of one that has refused a batch.
struct Scripted {
    sim: SimBackend,
    description: Description,
    limits: BatchLimits,
    /// What it was asked to compute since it fails for good.
    asked_broken: Option<usize>,
    has_read_nothing: bool,
    /// The batch that was begun.
    begun: Option<(Vec<i32>, Vec<i32>)>,
}

impl Scripted {
    fn fails_for_good(&mut self) -> bool {
        if let Some(asked) = &mut self.asked_broken {
            *asked += 1;
            assert_eq!(*asked, 1, "a broken backend gets more than the engine's own text");
        }
        self.asked_broken.is_some()
    }

    /// A batch is within the bounds of its pool, unless it is one row.
    fn check_bounds(&self, batch: &Batch<'_>) {
        let BatchLimits { layout, tokens_max, rows_max, .. } = self.limits;
        let (rows, longest) = (batch.rows(), batch.longest());
        let tokens = match (layout, self.description.buckets) {
            (BatchLayout::Padded, Some(buckets)) => rows * buckets.length(longest),
            (layout, _) => layout.tokens(batch),
        };
        // A text of full length has to fit.
        let within = rows <= rows_max && tokens <= tokens_max.max(INPUT_MAX);
        assert!(rows == 1 || within, "{rows} rows and {tokens} tokens within {:?}", self.limits);
    }
}

impl Backend for Scripted {
    fn description(&self) -> &Description {
        &self.description
    }

    fn run_while(
        &mut self,
        batch: &Batch<'_>,
        out: &mut [f32],
        meanwhile: &mut Meanwhile<'_>,
    ) -> Result<(), BackendError> {
        let _panics = Panics;
        if let Some((ids, lengths)) = self.begun.take() {
            assert_eq!((&ids[..], &lengths[..]), (batch.ids, batch.lengths), "not what was begun");
        }
        happens();
        let mut begun = None;
        meanwhile(&mut |next| {
            let begins = world(|w| w.random.one_in(2));
            begun = begins.then(|| (next.ids.to_vec(), next.lengths.to_vec()));
            begins
        });
        let result = self.run(batch, out);
        self.begun = begun;
        result
    }

    fn begins(&self) -> bool {
        true
    }

    fn forget_begun(&mut self) {
        self.begun = None;
        happens();
    }

    fn has_read_nothing(&self) -> bool {
        self.has_read_nothing
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        assert!(self.begun.is_none(), "something else is run than what was begun");
        self.check_bounds(batch);
        happens();
        let why = "the history says so".to_owned();
        if self.fails_for_good() {
            return Err(BackendError::Failed(why));
        }
        if !fails(4) {
            return self.sim.run(batch, out);
        }
        match world(|w| w.random.below(6)) {
            5 => {
                self.has_read_nothing = true;
                Err(BackendError::Lost(why))
            }
            0 => Err(BackendError::Lost(why)),
            1 => Err(BackendError::Failed(why)),
            2 => Err(BackendError::OutOfMemory(why)),
            3 => {
                self.asked_broken = Some(0);
                Err(BackendError::Failed(why))
            }
            _ => {
                out.fill(f32::NAN);
                Ok(())
            }
        }
    }
}

pub fn backend(limits: BatchLimits) -> Result<Box<dyn Backend>, BackendError> {
    let _panics = Panics;
    happens();
    if fails(5) {
        return Err(BackendError::Lost("the history lets nothing load".into()));
    }
    let sim = SimBackend::new(DIMENSIONS);
    let (buckets, device) = world(|w| (w.buckets, w.random.of(&DEVICES).to_owned()));
    let description = Description { buckets, device, ..sim.description().clone() };
    Ok(Box::new(Scripted {
        sim,
        description,
        limits,
        asked_broken: None,
        has_read_nothing: false,
        begun: None,
    }))
}
