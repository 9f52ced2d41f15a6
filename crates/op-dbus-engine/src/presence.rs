//! Whether an engine has its workers' memory: unloaded when nobody calls or somebody asks, loaded again
//! by the next call; devices let go while the machine sleeps; memory given back in between.

use std::time::Duration;

use crate::backend::Footprint;
use crate::engine::Engine;
use crate::error::Error;

/// Whether the workers have their backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// They have, or will in a moment have them no more.
    Loaded,
    /// They had none, and load again.
    Loading,
    /// All were lost and none can be had: calls are refused, and each is still tried again.
    Lost,
    /// They have none; calls are answered all the same.
    Unloaded(Absence),
}

/// Why workers have no backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// Nobody has called for long. The next call loads.
    Idle,
    /// Somebody asked for it. The next call loads.
    Asked,
    /// The machine is about to sleep, or just wakes; calls that need a device wait.
    Sleep,
}

impl Engine {
    /// Whether the workers have their backends.
    pub fn presence(&self) -> Presence {
        self.scheduler().presence()
    }

    /// Waits until [`presence`](Self::presence) is another one than `known`, and returns it.
    pub async fn presence_other_than(&self, known: Presence) -> Presence {
        self.scheduler().presence_other_than(known).await
    }

    /// The device that each worker computes on, or did.
    pub fn devices(&self) -> Vec<String> {
        self.scheduler().registry(|registry| registry.on().cloned().collect())
    }

    /// Waits until [`devices`](Self::devices) are others than `known`, as those of workers that move between
    /// servers.
    pub async fn devices_other_than(&self, known: &[String]) {
        self.scheduler().until_registry(|registry| !registry.on().eq(known)).await;
    }

    /// How long ago the last call ended, or the workers were loaded; `None` while anything is in flight.
    /// When the engine's own texts ended doesn't count, nor what needs no worker.
    pub fn idle_for(&self) -> Option<Duration> {
        Some(self.admission().idle_for()?.min(self.scheduler().loaded_for()))
    }

    /// Unloads the workers if no call was in flight for `time`; false if one was. The next call loads
    /// them again and waits for that, as all that come meanwhile. Vectors that were kept are forgotten.
    pub fn unload_idle(&self, time: Duration) -> bool {
        let idle = || self.admission().idle_for().is_some_and(|idle| idle >= time);
        let unloads = self.scheduler().unload_if(Absence::Idle, time, idle);
        if unloads {
            self.forget();
        }
        unloads
    }

    /// Whether nobody computes and nothing is wrong with that: no worker is to have a backend, or all are on their
    /// way, be it in place of lost ones.
    pub fn is_away(&self) -> bool {
        self.scheduler().is_away()
    }

    /// Waits until no call is in flight, unloads the workers, and returns once they are gone. The next
    /// call loads them again.
    pub async fn unload(&self) {
        self.begin_unload().await;
        self.unloaded().await;
    }

    /// Returns once the workers are gone, or are to be there again.
    pub async fn unloaded(&self) {
        self.scheduler().all_unloaded().await;
    }

    /// As [`unload`](Self::unload), but returns once the workers are told: however long they take, they go.
    pub async fn begin_unload(&self) {
        let (scheduler, admission) = (self.scheduler(), self.admission());
        while !scheduler.unload_if(Absence::Asked, Duration::ZERO, || admission.is_idle()) {
            admission.idle().await;
        }
        self.forget();
    }

    /// Loads the workers if they are not, and returns once they have proved themselves. While the
    /// machine sleeps devices are not waited for.
    ///
    /// # Errors
    /// No worker can be had, or the engine stops.
    pub async fn load(&self) -> Result<(), Error> {
        self.scheduler().load();
        self.scheduler().all_loaded().await
    }

    /// Has the workers that hold a device beside the CPU let it go, each after the batch that it runs,
    /// and returns once they have. Until [`wake`](Self::wake) calls that need them wait.
    pub async fn sleep(&self) {
        self.scheduler().sleep().await;
    }

    /// As [`sleep`](Self::sleep), but returns once the workers are told.
    pub fn begin_sleep(&self) {
        self.scheduler().begin_sleep();
    }

    /// Has the workers that held a device load again, and all others compute the engine's own text
    /// once more, before the next batch.
    pub fn wake(&self) {
        self.scheduler().wake();
    }

    /// Has the workers give back memory that only made the next batch faster, each after the batch that
    /// it runs, and tells how much they gave back and still have.
    pub async fn trim(&self) -> Footprint {
        self.scheduler().trim().await
    }
}
