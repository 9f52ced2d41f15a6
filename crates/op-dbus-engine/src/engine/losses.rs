//! What an engine tells of workers that are lost, and is told about them.

use super::Engine;
use crate::backend::{BackendError, Description};
use crate::registry::Registry;

impl Engine {
    /// Waits until no worker of the pool that was asked for can be had; without another pool calls are
    /// refused from then on. The workers are still tried again.
    pub async fn failing(&self) {
        self.scheduler().until_registry(Registry::is_failing).await;
    }

    /// Whether no worker of the pool that was asked for can be had now.
    pub fn is_failing(&self) -> bool {
        self.scheduler().registry(|registry| registry.is_failing())
    }

    /// Who computes in place of the workers that were asked for while none of these is there or can be had, and
    /// why: another pool, where there is one. An unload does not make them be there again.
    pub fn stand_in(&self) -> Option<(Description, String)> {
        self.scheduler().registry(|registry| registry.stand_in())
    }

    /// Waits until [`stand_in`](Self::stand_in) tells of somebody where it told of nobody, or the other way
    /// round: whether it did is `known`.
    pub async fn stand_in_other_than(&self, known: bool) {
        self.scheduler().until_registry(|registry| registry.stand_in().is_some() != known).await;
    }

    /// Why calls are refused, if no worker at all can be had now ([`Presence::Lost`](crate::Presence)).
    pub fn refusal(&self) -> Option<BackendError> {
        self.scheduler().registry(|registry| registry.refusal())
    }

    /// What the workers that were asked for are given up for, if it is that they prove themselves and then
    /// lose batch after batch ([`Pool::losses_max`](crate::Pool::losses_max)).
    pub fn losses(&self) -> Option<String> {
        self.scheduler().registry(|registry| registry.losses())
    }

    /// What the workers that were asked for are given up for, if who looks for them once more would find them as
    /// they are, or wait as long: [`Engine::losses`], or that they could not be loaded for some seconds.
    pub fn in_vain(&self) -> Option<String> {
        self.scheduler().registry(|registry| registry.in_vain())
    }

    /// What the workers lost batches with was no fault of theirs: a text that kills other workers as well.
    pub fn acquit(&self) {
        self.scheduler().change(Registry::acquit);
    }

    /// Nothing takes the place of workers that lose batches or load slowly: they are not given up for that any more.
    pub fn keep_trying(&self) {
        self.scheduler().change(Registry::keep_trying);
    }

    /// Something may take their place again: the workers that were asked for are given up when each has lost so
    /// many batches ([`Pool::losses_max`](crate::Pool::losses_max)), those that it lost of late among them.
    pub fn give_up_after(&self, losses: u32) {
        self.scheduler().change(|registry| registry.give_up_after(losses));
    }
}
