//! Probes of the kubelet: its process, its healthz endpoint, its Lease. Pure.
//!
//! Only what this agent has observed counts, on its own monotonic clock and without a gap. Times that others have written do not.

use std::{fmt, ops::Range, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// Name of the probe of the Lease.
pub const LEASE: &str = "lease";

/// The result of one probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// A kubelet is alive.
    Alive(String),
    /// No kubelet is seen.
    Down(String),
    /// The probe failed, for a reason that says nothing about the kubelet.
    Unknown(String),
}

/// The results of one kind of probe over time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeHistory {
    /// The last result.
    pub result: Probe,
    /// Since when all results are the same.
    pub since: Instant,
    /// A probe has found the present kubelet alive at least once.
    pub was_alive: bool,
    probed_at: Instant,
    /// Probes that are further apart than this show nothing about the time between.
    gap: Duration,
}

/// The kubelet's Lease. Only its changes count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The results of its probe.
    pub probe: ProbeHistory,
    /// When a renewal was last observed.
    pub renewed: Option<Instant>,
    /// Its last state.
    last: Option<LeaseState>,
    /// The last state that an earlier run of the agent has recorded, until this run has read one.
    recorded: Option<LeaseState>,
}

/// A value that changes with each renewal; `None` if there is no Lease.
pub type LeaseState = Option<String>;

/// All probes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probes {
    /// Kubelet processes of this node.
    pub process: ProbeHistory,
    /// Since when kubelet processes are present, or restart without a long pause.
    pub present_since: Option<Instant>,
    /// The last process, and since when it is present without a gap.
    pub same: Option<(String, Instant)>,
    /// How many processes have started since the healthz endpoint last answered.
    pub restarts: u32,
    /// Its healthz endpoint.
    pub healthz: ProbeHistory,
    /// The Lease of this Node.
    pub lease: Lease,
}

/// What a probe shows of the kubelet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ProbeState {
    /// It runs.
    Alive,
    /// It does not run.
    Down,
    /// The probe failed.
    #[default]
    Unknown,
}

// === impl ProbeState ===

impl fmt::Display for ProbeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Alive => "alive",
            Self::Down => "down",
            Self::Unknown => "unknown",
        })
    }
}

// === impl ProbeHistory ===

impl ProbeHistory {
    /// No probe yet. The next ones must not be further apart than `gap`.
    pub fn new(now: Instant, gap: Duration) -> Self {
        Self {
            result: Probe::Unknown("no probe has finished yet".to_owned()),
            since: now,
            was_alive: false,
            probed_at: now,
            gap,
        }
    }

    /// Adds a result. It was true at some moment of the probe, which lasted `over`.
    pub fn add(&mut self, result: Probe, over: &Range<Instant>) {
        let gap = over.start.saturating_duration_since(self.probed_at) > self.gap;
        if gap || std::mem::discriminant(&result) != std::mem::discriminant(&self.result) {
            self.since = over.end;
        }
        self.was_alive |= matches!(result, Probe::Alive(_));
        (self.result, self.probed_at) = (result, over.start);
    }

    /// How long all results have been Down, up to the last one; `None` if that one is too old.
    pub fn down_for(&self, now: Instant) -> Option<Duration> {
        self.duration_if(matches!(self.result, Probe::Down(_)), now)
    }

    /// When a probe could first show a downtime of `silence`, if none has shown it yet.
    pub fn next_due(&self, silence: Duration) -> Option<Instant> {
        let due = self.since + silence;
        (matches!(self.result, Probe::Down(_)) && self.probed_at < due).then_some(due)
    }

    /// Whether the last probe began before that moment.
    pub fn is_older_than(&self, moment: Instant) -> bool {
        self.probed_at < moment
    }

    /// Whether the last result is Alive and fresh.
    pub fn is_alive(&self, now: Instant) -> bool {
        self.duration_if(matches!(self.result, Probe::Alive(_)), now).is_some()
    }

    fn duration_if(&self, is_result: bool, now: Instant) -> Option<Duration> {
        let is_fresh = now.saturating_duration_since(self.probed_at) <= self.gap;
        (is_result && is_fresh).then(|| self.probed_at.saturating_duration_since(self.since))
    }

    /// Why the last result says nothing, if so.
    pub fn why_unknown(&self, now: Instant) -> Option<&str> {
        let is_stale = now.saturating_duration_since(self.probed_at) > self.gap;
        match &self.result {
            Probe::Unknown(why) => Some(why),
            _ if is_stale => Some("the last look takes too long"),
            _ => None,
        }
    }
}

// === impl Probe ===

impl Probe {
    /// Details of the result.
    pub fn detail(&self) -> &str {
        match self {
            Self::Alive(what) | Self::Down(what) | Self::Unknown(what) => what,
        }
    }

    /// The result without its details.
    pub fn state(&self) -> ProbeState {
        match self {
            Self::Alive(_) => ProbeState::Alive,
            Self::Down(_) => ProbeState::Down,
            Self::Unknown(_) => ProbeState::Unknown,
        }
    }
}

// === impl Lease ===

impl Lease {
    /// No probe yet.
    pub fn new(now: Instant, gap: Duration) -> Self {
        Self {
            probe: ProbeHistory::new(now, gap),
            renewed: None,
            last: None,
            recorded: None,
        }
    }

    /// The same with the last state that an earlier run of the agent has recorded.
    #[must_use]
    pub fn with_recorded(self, state: LeaseState) -> Self {
        Self {
            recorded: Some(state),
            ..self
        }
    }

    /// Its state at the last successful probe.
    pub fn state(&self) -> Option<&LeaseState> {
        self.last.as_ref()
    }

    /// Adds a result. An error of the API server is Unknown and starts the history again: a kubelet could not renew its Lease
    /// either.
    pub fn add(&mut self, state: Result<LeaseState, String>, over: &Range<Instant>) {
        let state = match state {
            Ok(state) => state,
            Err(why) => {
                self.last = None;
                self.probe.add(Probe::Unknown(why), over);
                return;
            }
        };
        let recorded = self.recorded.take();
        // A Lease that was deleted since the recorded state: a kubelet may have run unseen before or after.
        let is_other = recorded.is_some() && recorded.as_ref() != Some(&state);
        let before = self.last.replace(state).or(recorded);
        let (before, state) = (before.as_ref(), self.last.as_ref());
        // The first state is no change, and neither is a deletion.
        let renewed = before.is_some() && before != state && state.is_some_and(Option::is_some);
        let result = if renewed {
            Probe::Alive("is renewed".to_owned())
        } else if is_other {
            Probe::Alive("is not there any more since this agent was started again".to_owned())
        } else if state.is_some_and(Option::is_some) {
            Probe::Down("is not renewed".to_owned())
        } else {
            Probe::Down("is not there".to_owned())
        };
        // The state after a renewal has been the same since the probe that showed it.
        let since = self.probe.is_alive(over.start).then_some(self.probe.since);
        self.probe.add(result, over);
        if renewed {
            (self.probe.since, self.renewed) = (over.end, Some(over.end));
        } else if let Some(since) = since {
            self.probe.since = since;
        }
    }
}

// === impl Probes ===

impl Probes {
    /// No probe yet. Processes must be probed at least every `process_gap`, healthz and Lease every `endpoint_gap`.
    pub fn new(now: Instant, process_gap: Duration, endpoint_gap: Duration) -> Self {
        Self {
            process: ProbeHistory::new(now, process_gap),
            present_since: None,
            same: None,
            restarts: 0,
            healthz: ProbeHistory::new(now, endpoint_gap),
            lease: Lease::new(now, endpoint_gap),
        }
    }

    /// Whether the present kubelet process has shown that it works: healthz answers, or the Lease was renewed after its start. A
    /// process that systemd has just restarted has not.
    pub fn present_kubelet_works(&self, now: Instant) -> bool {
        let answers = self.healthz.was_alive && self.healthz.is_alive(now);
        let renewed_by = |(_, since): &(String, Instant)| self.lease.renewed.is_some_and(|renewed| renewed >= *since);
        answers || self.same.as_ref().is_some_and(renewed_by)
    }

    /// Whether the last result of every probe is Down.
    pub fn all_are_down(&self, now: Instant) -> bool {
        self.each().iter().all(|(_, probe)| probe.down_for(now).is_some())
    }

    /// How long the same process has been present.
    pub fn same_process_for(&self, now: Instant) -> Option<Duration> {
        let (_, since) = self.same.as_ref().filter(|_| self.process.is_alive(now))?;
        Some(now.saturating_duration_since(*since))
    }

    /// The first moment after `after` when one of the probes could show a downtime of `silence`.
    pub fn next_due(&self, silence: Duration, after: Instant) -> Option<Instant> {
        let due = self.each().into_iter().filter_map(|(_, probe)| probe.next_due(silence));
        due.filter(|due| *due > after).min()
    }

    /// Each probe with its name.
    pub fn each(&self) -> [(&'static str, &ProbeHistory); 3] {
        [
            ("process", &self.process),
            ("healthz", &self.healthz),
            (LEASE, &self.lease.probe),
        ]
    }

    /// Adds a result of the process probe. After `no_process_for` without a process no kubelet is around.
    pub fn add_process(&mut self, result: Probe, over: &Range<Instant>, no_process_for: Duration) {
        let was_down = matches!(self.process.result, Probe::Down(_));
        self.process.add(result, over);
        let probed_at = over.end;
        if let Probe::Alive(process) = &self.process.result {
            let is_another = was_down || self.same.as_ref().is_none_or(|(before, _)| before != process);
            self.restarts += u32::from(is_another);
            // Or the same process was not seen for a while.
            if is_another || self.process.since == probed_at {
                self.same = Some((process.clone(), probed_at));
            }
            if is_another {
                // The new process may have another healthz address.
                let answers = matches!(self.healthz.result, Probe::Alive(_));
                self.healthz.was_alive = answers && !self.healthz.is_older_than(probed_at);
            }
        }
        if matches!(self.healthz.result, Probe::Alive(_)) {
            self.restarts = 0;
        }
        match &self.process.result {
            Probe::Alive(_) => drop(self.present_since.get_or_insert(probed_at)),
            _ if self
                .process
                .down_for(probed_at)
                .is_some_and(|down_for| down_for >= no_process_for) =>
            {
                (self.present_since, self.restarts) = (None, 0);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROCESS_GAP: Duration = Duration::from_secs(5);

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn down_for() -> Probe {
        Probe::Down(String::new())
    }

    #[tokio::test(start_paused = true)]
    async fn probe_is_due_when_it_may_show_the_whole_downtime() {
        let start = Instant::now();
        let mut probe = ProbeHistory::new(start, PROCESS_GAP);
        let due = |probe: &ProbeHistory| probe.next_due(secs(7));
        assert_eq!(due(&probe), None, "no probe yet");
        // A probe that took a second.
        probe.add(down_for(), &(start..start + secs(1)));
        probe.add(down_for(), &(start + secs(5)..start + secs(5)));
        assert_eq!(due(&probe), Some(start + secs(8)));
        probe.add(down_for(), &(start + secs(8)..start + secs(9)));
        assert_eq!(due(&probe), None, "that probe has shown it");
        probe.add(Probe::Alive(String::new()), &(start + secs(10)..start + secs(10)));
        assert_eq!(due(&probe), None);
    }

    #[tokio::test(start_paused = true)]
    async fn downtime_counts_only_without_a_gap_between_probes() {
        let start = Instant::now();
        let mut probe = ProbeHistory::new(start, PROCESS_GAP);
        let at = |seconds| start + secs(seconds)..start + secs(seconds);
        probe.add(down_for(), &at(0));
        probe.add(down_for(), &at(5));
        assert_eq!(probe.down_for(start + secs(6)), Some(secs(5)));
        assert_eq!(probe.down_for(start + secs(11)), None, "the last probe is too old");
        probe.add(down_for(), &at(11));
        assert_eq!(
            probe.down_for(start + secs(11)),
            Some(secs(0)),
            "it restarts after a gap"
        );
        probe.add(Probe::Unknown(String::new()), &at(12));
        assert_eq!(probe.down_for(start + secs(12)), None);
        probe.add(down_for(), &at(13));
        assert_eq!(probe.down_for(start + secs(13)), Some(secs(0)));
    }

    #[tokio::test(start_paused = true)]
    async fn healthz_probe_that_is_slightly_late_leaves_no_gap() {
        let start = Instant::now();
        let mut probes = Probes::new(start, PROCESS_GAP, 3 * PROCESS_GAP);
        let late = PROCESS_GAP + Duration::from_millis(1);
        for n in 0..10 {
            let at = start + n * late;
            assert!(
                n == 0 || probes.healthz.why_unknown(at).is_none(),
                "there is no answer yet"
            );
            probes.healthz.add(down_for(), &(at..at));
        }
        assert_eq!(probes.healthz.down_for(start + 9 * late), Some(9 * late));
    }

    #[tokio::test(start_paused = true)]
    async fn lease_is_down_since_its_present_state_was_first_read() {
        let start = Instant::now();
        let mut lease = Lease::new(start, secs(10));
        let mut add = |state: Result<Option<&str>, &str>, after: u64| {
            let state = state.map(|it| it.map(str::to_owned)).map_err(str::to_owned);
            lease.add(state, &(start + secs(after)..start + secs(after)));
            (
                lease.probe.is_alive(start + secs(after)),
                lease.probe.down_for(start + secs(after)),
            )
        };
        assert_eq!(
            add(Ok(Some("1")), 0),
            (false, Some(secs(0))),
            "the first state is no change"
        );
        assert_eq!(add(Ok(Some("1")), 5), (false, Some(secs(5))));
        assert_eq!(add(Ok(Some("2")), 10), (true, None));
        assert_eq!(
            add(Ok(Some("2")), 15),
            (false, Some(secs(5))),
            "since the probe that first read it"
        );
        assert_eq!(add(Ok(Some("3")), 20), (true, None));
        assert_eq!(add(Ok(Some("4")), 25), (true, None));
        assert_eq!(add(Ok(Some("4")), 30), (false, Some(secs(5))));
        assert_eq!(add(Err("refused"), 35), (false, None));
        assert_eq!(
            add(Ok(Some("4")), 40),
            (false, Some(secs(0))),
            "an outage restarts the history"
        );
        assert_eq!(add(Ok(None), 45), (false, Some(secs(5))), "a deletion is no renewal");
        assert_eq!(add(Ok(Some("9")), 50), (true, None), "a creation is one");
    }

    #[tokio::test(start_paused = true)]
    async fn first_probe_of_a_recorded_lease_shows_whether_it_has_changed() {
        let start = Instant::now();
        let at = start..start;
        let some = |state: &str| Some(state.to_owned());
        for (recorded, outage, seen, renewed) in [
            (some("1"), false, some("1"), false),
            (some("1"), true, some("1"), false),
            (some("1"), false, some("2"), true),
            (some("1"), true, some("2"), true),
            (some("1"), false, None, true),
            (some("1"), true, None, true),
            (None, false, None, false),
            (None, false, some("1"), true),
        ] {
            let mut lease = Lease::new(start, secs(10)).with_recorded(recorded.clone());
            if outage {
                lease.add(Err("refused".to_owned()), &at);
            }
            lease.add(Ok(seen.clone()), &at);
            assert_eq!(lease.probe.is_alive(start), renewed, "{recorded:?} {outage} {seen:?}");
            assert_eq!(lease.probe.down_for(start).is_some(), !renewed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn process_that_exits_during_a_probe_is_down_since_the_end_of_that_probe() {
        let start = Instant::now();
        let mut probes = Probes::new(start, PROCESS_GAP, secs(10));
        probes.add_process(Probe::Alive(String::new()), &(start..start), secs(45));
        probes.add_process(down_for(), &(start + secs(1)..start + secs(5)), secs(45));
        assert_eq!(probes.process.since, start + secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn restarted_kubelet_works_when_it_has_answered_or_renewed_by_itself() {
        let start = Instant::now();
        let at = |seconds| start + secs(seconds)..start + secs(seconds);
        let works = |probes: &Probes, seconds| probes.present_kubelet_works(start + secs(seconds));
        let mut probes = Probes::new(start, PROCESS_GAP, secs(15));
        assert!(!works(&probes, 0));
        probes.add_process(Probe::Alive("1".to_owned()), &at(0), secs(45));
        probes.healthz.add(Probe::Alive(String::new()), &at(1));
        assert!(works(&probes, 1));
        probes.add_process(Probe::Alive("2".to_owned()), &at(2), secs(45));
        assert!(!works(&probes, 2), "the answer was another process's");
        probes.healthz.add(down_for(), &at(3));
        for (seconds, renewal) in [(3, "1"), (4, "2")] {
            probes.lease.add(Ok(Some(renewal.to_owned())), &at(seconds));
        }
        assert!(works(&probes, 4));
        probes.add_process(Probe::Alive("3".to_owned()), &at(5), secs(45));
        assert!(!works(&probes, 5), "the renewal was another process's");
    }

    #[tokio::test(start_paused = true)]
    async fn restarting_kubelet_is_present_until_it_stays_down() {
        let start = Instant::now();
        let mut probes = Probes::new(start, PROCESS_GAP, secs(10));
        for second in 0..60 {
            let is_alive = second % 10 == 0;
            let result = if is_alive {
                Probe::Alive(String::new())
            } else {
                down_for()
            };
            probes.add_process(result, &(start + secs(second)..start + secs(second)), secs(45));
        }
        assert_eq!(probes.present_since, Some(start));
        for second in 60..97 {
            probes.add_process(down_for(), &(start + secs(second)..start + secs(second)), secs(45));
        }
        assert_eq!(probes.present_since, None);
    }
}
