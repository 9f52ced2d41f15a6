//! Jobs: long work that no call waits for. Nobody but the user who started one learns of it: the
//! standard interfaces, which would tell everybody, are our own here (`seen.rs`, `tree.rs`).

mod job;
mod life;
mod seen;
mod tree;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use op_dbus_api::{Error, ErrorName, JOBS_PATH};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use zbus::OwnedObjectPath;

use super::bulk::Work;
use super::caller::Caller;
use super::calls::Calls;
use super::options::Wanted;
use crate::service::{Error as ServiceError, Phase};
use job::Job;
use life::Life;

pub use tree::plant;

/// The jobs of all users.
#[derive(Default)]
pub struct Jobs {
    /// By name, the last part of the path.
    all: Mutex<BTreeMap<String, Arc<Job>>>,
    lives: Mutex<JoinSet<()>>,
}

impl Jobs {
    /// Ends all jobs, and returns once their objects are gone.
    pub async fn end(&self) {
        let ended = || ServiceError::ShuttingDown.into();
        self.all.lock().values().for_each(|job| job.end(ended()));
        let mut lives = std::mem::take(&mut *self.lives.lock());
        while lives.join_next().await.is_some() {}
    }

    /// The jobs of a user, by name.
    fn of(&self, uid: u32) -> Vec<Arc<Job>> {
        self.all.lock().values().filter(|job| job.is_of(uid)).cloned().collect()
    }
}

/// A job's place on the list; taken off when dropped.
struct Listed {
    jobs: Arc<Jobs>,
    job: Arc<Job>,
}

impl Listed {
    fn new(jobs: Arc<Jobs>, job: Job) -> Self {
        let job = Arc::new(job);
        jobs.all.lock().insert(job.name.clone(), job.clone());
        Self { jobs, job }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.jobs.all.lock().remove(&self.job.name);
    }
}

impl Calls {
    /// Starts what `EmbedFromFd` does as a job of `caller`, and returns its path.
    ///
    /// # Errors
    /// `QuotaExceeded`, `Overloaded`; `InvalidArgument` for a descriptor that is no source, and on a
    /// direct connection; `DeadlineExceeded` for one whose file system does not say what it is;
    /// `ShuttingDown`. All else is the job's error.
    pub async fn start_embed_from_fd(
        self,
        caller: Caller,
        fd: OwnedFd,
        wanted: Wanted,
    ) -> Result<OwnedObjectPath, Error> {
        let Some(jobs) = self.jobs.clone() else {
            let message = "a direct connection has no jobs; start them over the bus";
            return Err(Error::new(ErrorName::InvalidArgument, message));
        };
        let place = self.budget.place(caller.uid, Work::Job)?;
        let source = self.source(&caller, fd, &wanted).await?;
        // Only now, as a look at the source may take its time.
        if matches!(self.service.now().phase, Phase::Draining(_)) {
            return Err(ServiceError::ShuttingDown.into());
        }
        let job = Job::new(name(), &caller, source.bytes()).map_err(|error| {
            Error::new(ErrorName::Failed, format!("a job has no path ({error})"))
        })?;
        let listed = Listed::new(jobs.clone(), job);
        let path = listed.job.path.clone();
        let life = Life::new(listed, self, caller, place);
        let told = life.appear().await.map_err(|error| {
            Error::new(ErrorName::Failed, format!("a job could not be shown on the bus ({error})"))
        })?;
        let mut lives = jobs.lives.lock();
        // Those that have ended are let go.
        while lives.try_join_next().is_some() {}
        lives.spawn(life.live(source, wanted, told));
        Ok(path)
    }
}

/// A name that nobody guesses: which error names a path would tell that there is an object.
fn name() -> String {
    let part = || RandomState::new().hash_one(JOBS_PATH);
    format!("{:016x}{:016x}", part(), part())
}
