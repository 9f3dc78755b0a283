//! Looking for a kubelet: while one works on this node's pods nothing is touched, nor while it is not known whether one does.

use std::{io, net::SocketAddr, ops::Range, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{Guard, State};
use crate::{
    handover::probes::Probe,
    node::kubelet_process::{
        self, KubeletProcess, Ours, Why,
        start::{self, Difference, KubeletStart},
    },
};

/// How often the processes of this machine are looked through for a kubelet.
const LOOK: Duration = Duration::from_secs(1);
/// The same while anything is under way: a kubelet needs about a second from its start to its first work on a pod.
const LOOK_WHILE_BUSY: Duration = Duration::from_millis(250);
/// What an older look has seen, or not seen, counts no more. A process may hang so that it cannot be looked at.
const STALE: Duration = Duration::from_secs(5);

impl Guard {
    /// The kubelet that was seen at the last look.
    pub fn kubelet(&self) -> Option<KubeletProcess> {
        self.lock().kubelet.clone().ok().flatten()
    }

    /// What the looks at the processes have shown since this was asked last, and from when until when the last one went on: also
    /// a kubelet that has come and gone between two questions has been here.
    pub fn looks(&self) -> (Probe, Range<Instant>) {
        let mut state = self.lock();
        let seen = state.seen.take();
        let look = match (&state.kubelet, &seen) {
            (Ok(Some(kubelet)), _) | (_, Some(kubelet)) => Probe::Alive(kubelet.to_string()),
            (Ok(None), None) => Probe::Down("there is none".to_owned()),
            (Err(why), None) => Probe::Unknown(why.clone()),
        };
        (look, state.looked.clone())
    }

    /// Whether nothing may be touched because of a kubelet, and for no other reason: what is seen to happen to pods is this
    /// node's, and the kubelet's work, whatever lists prove.
    pub fn leaves_all_to_a_kubelet(&self) -> bool {
        let state = self.lock();
        let sees_one = matches!(state.kubelet, Ok(Some(_))) && state.looked.start.elapsed() <= STALE;
        sees_one && state.world.is_ok()
    }

    /// A kubelet is here, or may be or have been without being seen. It comes before requests to stop pods.
    pub fn may_have_a_kubelet(&self) {
        self.journal.cancel_requests();
    }

    /// Looks for a kubelet until the agent stops.
    pub async fn look_for_kubelet(self, ours: Ours) {
        loop {
            self.look(&ours).await;
            let is_busy = self.lock().turn.is_busy();
            tokio::select! {
                biased;
                () = self.look_now.notified() => {}
                () = sleep(if is_busy { LOOK_WHILE_BUSY } else { LOOK }) => {}
            }
        }
    }

    /// One look for a kubelet of ours. While the one that was seen last is there, no other has to
    /// be looked for among all processes.
    pub async fn look(&self, ours: &Ours) {
        let (proc, ours) = (Arc::clone(&self.proc), ours.clone());
        let known = self.kubelet();
        let look = move || {
            let still = known
                .as_ref()
                .map(|known| kubelet_process::with_pid(&proc, known.pid, &ours));
            let found = match still {
                Some(Ok(Some(still))) => Some(still),
                Some(Ok(None) | Err(_)) | None => kubelet_process::find(&proc, &ours)?.into_iter().next(),
            };
            // Flags are read once for each process.
            let is_new = |kubelet: &&KubeletProcess| known.as_ref() != Some(*kubelet);
            let started = found
                .as_ref()
                .filter(is_new)
                .and_then(|kubelet| start::of(&proc, kubelet.pid));
            io::Result::Ok((found, started))
        };
        let began = Instant::now();
        let found = self.blocking.run(look).await;
        let mut started = None;
        let kubelet = match found {
            Ok(Ok((found, with))) => {
                started = with;
                Ok(found)
            }
            Ok(Err(error)) => Err(format!(
                "looking for one failed: {error}; the agent has to see all of /proc"
            )),
            Err(_) => Err("the look for one panicked".to_owned()),
        };
        if let (Ok(Some(kubelet)), Some(started)) = (&kubelet, started) {
            self.learn(kubelet, started);
        }
        let mut state = self.lock();
        let is_news = state.kubelet != kubelet;
        if is_news {
            match &kubelet {
                Ok(Some(kubelet)) => {
                    tracing::warn!(%kubelet, "A kubelet works on this node's pods: nothing is touched");
                }
                Err(why) => {
                    tracing::warn!(
                        why,
                        "Whether a kubelet works on this node's pods is not known: nothing is touched"
                    );
                }
                Ok(None) => tracing::info!("No kubelet works on this node's pods"),
            }
        }
        if let Ok(Some(kubelet)) = &kubelet {
            state.turn.kubelet_is_seen();
            state.seen = Some(kubelet.clone());
            self.may_have_a_kubelet();
        }
        let is_here = matches!(kubelet, Ok(Some(_)));
        state.kubelet = kubelet;
        state.looked = began..Instant::now();
        if is_here {
            self.lets_go.notify_waiters();
        }
        let is_awaited = state.look_asked.take_if(|asked| began >= *asked).is_some();
        if is_news || is_awaited {
            self.has_looked.notify_one();
        }
    }

    /// Records the flags of a kubelet for the time when it is not running, and logs which of them disagree with our settings.
    fn learn(&self, kubelet: &KubeletProcess, started: KubeletStart) {
        let compared = self.compared.as_deref();
        for Difference { what, remedy } in compared.map(|ours| started.differences(ours)).unwrap_or_default() {
            tracing::warn!(what, remedy, "The kubelet and the agent have different settings");
        }
        // One with another directory may be another node's. `kubelet --version` serves no pods.
        if kubelet.why == Why::SameDirectory && started.serves_node() {
            self.journal.set_kubelet(started);
        }
    }

    /// Whether a process that may be a kubelet listens at this address.
    ///
    /// # Errors
    /// The reason, when that is unknown.
    pub async fn is_kubelets_answer(&self, at: SocketAddr) -> Result<bool, String> {
        let (proc, known) = (Arc::clone(&self.proc), self.kubelet().map(|kubelet| kubelet.pid));
        let look = move || kubelet_process::is_kubelets_answer(&proc, at, known);
        let answer = self.blocking.run(look).await.map_err(|error| error.to_string())?;
        answer.map_err(|error| error.to_string())
    }

    /// Has a kubelet looked for at once.
    pub fn look_now(&self) {
        self.lock().look_asked = Some(Instant::now());
        self.look_now.notify_one();
    }

    /// Returns when a look has shown something else than the one before, or was asked for.
    pub async fn has_looked(&self) {
        self.has_looked.notified().await;
    }
}

// === impl State ===

impl State {
    /// The kubelet that works here, or why it is not known whether there is one.
    pub(super) fn why_a_kubelet(&self) -> Option<String> {
        let not_known = |why: &str| format!("whether a kubelet works on this node's pods is not known: {why}");
        let kubelet = match &self.kubelet {
            Ok(None) => None,
            Ok(Some(kubelet)) if self.turn.is_wedged => Some(format!(
                "the kubelet of this node is wedged; mend it, or stop it: {kubelet}"
            )),
            Ok(Some(kubelet)) => Some(format!("a kubelet works on this node's pods: {kubelet}")),
            Err(why) => Some(not_known(why)),
        };
        let since = self.looked.start.elapsed();
        let unknown =
            (since > STALE).then(|| not_known(&format!("the look for one takes {} s already", since.as_secs())));
        let stands_by = || Some(format!("standing by: {}", self.turn.stands_by.as_ref()?));
        kubelet.or(unknown).or_else(|| self.turn.why_held()).or_else(stands_by)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;
    use tokio_util::task::AbortOnDropHandle;

    use super::*;
    use crate::{
        journal::Journal,
        node::{identity::Identity, kubelet_root::KubeletRoot},
    };

    /// A directory that is both list of processes and kubelet's directory, and a guard that looks there.
    fn machine() -> (tempfile::TempDir, Ours, Guard) {
        let proc = tempfile::tempdir().unwrap();
        std::fs::create_dir(proc.path().join("pods")).unwrap();
        let ours = Ours {
            root: KubeletRoot::resolve(proc.path()).unwrap(),
            runtime: "/run/cri.sock".into(),
            healthz: None,
        };
        let guard = Guard::new(Identity::default(), Journal::forgetful(), proc.path().to_owned());
        guard.set_world(Ok(()));
        (proc, ours, guard)
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_look_found_counts_only_for_a_while() {
        let (_proc, ours, guard) = machine();
        guard.look(&ours).await;
        assert_eq!(guard.why_held(), None);
        advance(STALE + LOOK).await;
        assert!(guard.why_held().unwrap().contains("is not known"));
        guard.look(&ours).await;
        assert_eq!(guard.why_held(), None);
    }

    /// Whether a kubelet is seen so soon after it has appeared, half a second after the last look of an agent that does
    /// nothing.
    async fn is_seen_within(time: Duration, is_busy: bool) -> bool {
        let (proc, ours, guard) = machine();
        guard.look(&ours).await;
        let _looking = AbortOnDropHandle::new(tokio::spawn(guard.clone().look_for_kubelet(ours)));
        sleep(LOOK / 4).await;
        let pod = is_busy.then(|| guard.begin("default/web-0".to_owned()).unwrap());
        sleep(LOOK / 4).await;
        std::fs::create_dir(proc.path().join("77")).unwrap();
        std::fs::write(proc.path().join("77/comm"), "kubelet\n").unwrap();
        sleep(time).await;
        drop(pod);
        guard.kubelet().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn a_kubelet_that_has_come_and_gone_between_two_questions_was_here() {
        let (proc, ours, guard) = machine();
        let look = async || guard.look(&ours).await;
        look().await;
        assert!(matches!(guard.looks().0, Probe::Down(_)));
        std::fs::create_dir(proc.path().join("77")).unwrap();
        std::fs::write(proc.path().join("77/comm"), "kubelet\n").unwrap();
        look().await;
        std::fs::write(proc.path().join("77/comm"), "sleep\n").unwrap();
        look().await;
        assert_eq!(guard.kubelet(), None);
        assert!(matches!(guard.looks().0, Probe::Alive(_)));
        assert!(matches!(guard.looks().0, Probe::Down(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn flags_of_a_kubelet_are_recorded_for_the_time_when_it_is_not_running() {
        let (proc, ours, guard) = machine();
        let at = |name: &str| proc.path().join(name);
        for dir in ["self/ns", "77/ns", "77/task/77"] {
            std::fs::create_dir_all(at(dir)).unwrap();
        }
        for process in ["self", "77"] {
            std::os::unix::fs::symlink("mnt:[1]", at(process).join("ns/mnt")).unwrap();
        }
        std::os::unix::fs::symlink("/", at("77/root")).unwrap();
        std::fs::write(at("77/comm"), "kubelet\n").unwrap();
        for config in ["/first", "/second"] {
            let command = format!("kubelet\0--root-dir={}\0--config={config}\0", proc.path().display());
            std::fs::write(at("77/cmdline"), command).unwrap();
            guard.look(&ours).await;
            let kept = guard.journal.kubelet().unwrap();
            assert_eq!(kept.config.as_deref(), Some(std::path::Path::new(config)));
        }
        // Another one, for a moment, that serves no node.
        std::fs::write(at("77/comm"), "sleep\n").unwrap();
        guard.look(&ours).await;
        assert_eq!(guard.kubelet(), None);
        std::fs::write(at("77/comm"), "kubelet\n").unwrap();
        let command = format!("kubelet\0--root-dir={}\0--version\0", proc.path().display());
        std::fs::write(at("77/cmdline"), command).unwrap();
        guard.look(&ours).await;
        assert!(guard.kubelet().is_some());
        let kept = guard.journal.kubelet().unwrap();
        assert_eq!(kept.config.as_deref(), Some(std::path::Path::new("/second")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_kubelet_is_seen_within_a_second_and_within_a_quarter_of_it_while_anything_is_under_way() {
        assert!(!is_seen_within(LOOK_WHILE_BUSY, false).await);
        assert!(is_seen_within(LOOK, false).await);
        assert!(is_seen_within(LOOK_WHILE_BUSY, true).await);
    }
}
