//! Bounds the reads of each pod for diagnoses and plans.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::Semaphore;

/// Number of threads that the reads of one pod take at most. So a file system that hangs does not blind the answers about other
/// pods.
const MAX_READS_OF_POD: usize = 8;

/// Slots for reads, by UID of the pod.
#[derive(Debug, Default)]
pub struct PodReads(Mutex<HashMap<String, Weak<Semaphore>>>);

impl PodReads {
    /// The slots of this pod.
    pub fn slots(&self, uid: &str) -> Arc<Semaphore> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, slots| slots.strong_count() > 0);
        if let Some(slots) = all.get(uid).and_then(Weak::upgrade) {
            return slots;
        }
        let slots = Arc::new(Semaphore::new(MAX_READS_OF_POD));
        all.insert(uid.to_owned(), Arc::downgrade(&slots));
        slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hung_reads_of_one_pod_leave_slots_for_others_and_for_itself_later() {
        let reads = PodReads::default();
        let hung: Vec<_> = (0..MAX_READS_OF_POD)
            .map(|_| reads.slots("u1").try_acquire_owned().unwrap())
            .collect();
        assert!(reads.slots("u1").try_acquire_owned().is_err());
        assert!(reads.slots("u2").try_acquire_owned().is_ok());
        drop(hung);
        assert!(reads.slots("u1").try_acquire_owned().is_ok());
    }
}
