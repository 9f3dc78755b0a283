//! Probes of the kubelet: its process, its healthz endpoint, its Lease. Pure.
//!
//! Only what this agent has observed counts, on its own monotonic clock and without a gap. Times that others have written do not.

use std::{ops::Range, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::why::Why;

/// Starts before so long a time without a kubelet process are forgotten: nothing starts it any more.
const START_MEMORY: Duration = Duration::from_secs(600);

/// A kubelet renews its Lease every 10 s, and the agent reads it every 5 s.
pub const RENEWAL_LIMIT: Duration = Duration::from_secs(15);

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
    /// Its state at the last probe, if that was successful.
    pub last: Option<LeaseState>,
    /// The last state that an earlier run of the agent has recorded, until this run has read one.
    pub recorded: Option<LeaseState>,
}

/// A value that changes with each renewal; `None` if there is no Lease.
pub type LeaseState = Option<String>;

/// All probes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probes {
    /// Kubelet processes of this node.
    pub process: ProbeHistory,
    /// The last process, and since when it is present without a gap.
    pub same: Option<(String, Instant)>,
    /// Kubelet processes that have started since one last worked, or since something ended them.
    pub starts: Option<Starts>,
    /// The exit of the last process that had renewed the Lease and was not due to renew it again: it worked until then.
    worked_until: Option<Instant>,
    /// Its healthz endpoint.
    pub healthz: ProbeHistory,
    /// The Lease of this Node.
    pub lease: Lease,
}

/// Starts of kubelet processes, none of which has worked: neither has healthz answered nor was the Lease renewed since the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Starts {
    /// Number of them.
    pub count: u32,
    /// When the first was seen.
    pub first: Instant,
    /// When a process was last seen.
    last: Instant,
}

/// What a probe shows of the kubelet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum ProbeState {
    /// It runs.
    Alive,
    /// It does not run.
    Down,
    /// The probe failed.
    #[default]
    Unknown,
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

    /// Adds a result. An error of the API server is Unknown and starts the history again: a kubelet could not renew its Lease
    /// either.
    pub fn add(&mut self, state: Result<LeaseState, Why>, over: &Range<Instant>) {
        let state = match state {
            Ok(state) => state,
            Err(why) => {
                self.last = None;
                self.probe.add(Probe::Unknown(why.to_string()), over);
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
            same: None,
            starts: None,
            worked_until: None,
            healthz: ProbeHistory::new(now, endpoint_gap),
            lease: Lease::new(now, endpoint_gap),
        }
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

    /// When the probes could first show that no kubelet has worked for so long, if that is after `after` and not all have shown it
    /// yet.
    pub fn next_due(&self, silence: Duration, after: Instant) -> Option<Instant> {
        let due = self.last_silent_since()? + silence;
        let is_shown = || self.each().iter().all(|(_, probe)| !probe.is_older_than(due));
        (due > after && !is_shown()).then_some(due)
    }

    /// Each probe with its name.
    pub fn each(&self) -> [(&'static str, &ProbeHistory); 3] {
        [
            ("process", &self.process),
            ("healthz", &self.healthz),
            (LEASE, &self.lease.probe),
        ]
    }

    /// Since when no kubelet works, by healthz and Lease; `None` if one of them shows one, or is unknown.
    pub fn silent_since(&self, now: Instant) -> Option<Instant> {
        let is_fresh = |probe: &ProbeHistory| probe.down_for(now).is_some();
        self.last_silent_since()
            .filter(|_| is_fresh(&self.healthz) && is_fresh(&self.lease.probe))
    }

    /// The same by the last results, however old these are.
    fn last_silent_since(&self) -> Option<Instant> {
        let silent = |probe: &ProbeHistory| matches!(probe.result, Probe::Down(_)).then_some(probe.since);
        let since = silent(&self.healthz)?.max(silent(&self.lease.probe)?);
        Some(self.worked_until.map_or(since, |until| since.max(until)))
    }

    /// Whether the present process has answered at healthz, or renewed the Lease.
    pub fn has_worked(&self) -> bool {
        let started = self.same.as_ref().map(|(_, since)| *since);
        self.healthz.was_alive || started.is_some_and(|started| self.lease.renewed > Some(started))
    }

    /// Kubelet processes that have started since one last worked, unless the last is long gone.
    pub fn recent_starts(&self, now: Instant) -> Option<Starts> {
        self.starts
            .filter(|starts| now.saturating_duration_since(starts.last) < START_MEMORY)
    }

    /// Adds a result of the healthz probe.
    pub fn add_health(&mut self, result: Probe, over: &Range<Instant>) {
        if matches!(result, Probe::Alive(_)) {
            self.starts = None;
        }
        self.healthz.add(result, over);
    }

    /// Adds a result of the Lease probe.
    pub fn add_lease(&mut self, state: Result<LeaseState, Why>, over: &Range<Instant>) {
        let renewed = self.lease.renewed;
        self.lease.add(state, over);
        if self.lease.renewed != renewed {
            self.starts = None;
        }
    }

    /// Adds a result of the process probe.
    pub fn add_process(&mut self, result: Probe, over: &Range<Instant>) {
        let (was_down, was_alive) = match &self.process.result {
            Probe::Down(_) => (true, false),
            Probe::Alive(_) => (false, true),
            Probe::Unknown(_) => (false, false),
        };
        let probed_at = over.end;
        self.process.add(result, over);
        let Probe::Alive(process) = &self.process.result else {
            let started = self.same.as_ref().map(|(_, since)| *since);
            let renewed = self.lease.renewed.filter(|renewed| Some(*renewed) > started);
            if was_alive && renewed.is_some_and(|renewed| probed_at < renewed + RENEWAL_LIMIT) {
                self.worked_until = Some(probed_at);
            }
            return;
        };
        let is_another = was_down || self.same.as_ref().is_none_or(|(before, _)| before != process);
        // Or the same process was not seen for a while.
        if is_another || self.process.since == probed_at {
            self.same = Some((process.clone(), probed_at));
        }
        if is_another {
            // The new process may have another healthz address.
            let answers = matches!(self.healthz.result, Probe::Alive(_));
            self.healthz.was_alive = answers && !self.healthz.is_older_than(probed_at);
        }
        let before = self.recent_starts(probed_at);
        self.starts = Some(Starts {
            count: before.map_or(0, |starts| starts.count) + u32::from(is_another),
            first: before.map_or(probed_at, |starts| starts.first),
            last: probed_at,
        })
        // A process that works has no failed start.
        .filter(|starts| starts.count > 0);
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
    async fn probes_are_due_when_they_may_show_the_whole_silence() {
        let start = Instant::now();
        let at = |seconds| start + secs(seconds)..start + secs(seconds);
        let mut probes = Probes::new(start, PROCESS_GAP, secs(10));
        let due = |probes: &Probes, after| probes.next_due(secs(7), start + secs(after));
        assert_eq!(due(&probes, 0), None, "no probe yet");
        probes.add_lease(Ok(None), &at(0));
        // A probe that took a second.
        probes.add_health(down_for(), &(start..start + secs(1)));
        probes.add_health(down_for(), &at(5));
        assert_eq!(due(&probes, 5), Some(start + secs(8)));
        assert_eq!(due(&probes, 8), None, "they were requested");
        probes.add_health(down_for(), &(start + secs(8)..start + secs(9)));
        probes.add_lease(Ok(None), &at(8));
        assert_eq!(due(&probes, 5), Some(start + secs(8)), "not all have shown it");
        probes.add_process(down_for(), &at(8));
        assert_eq!(due(&probes, 5), None, "all have shown it");
        probes.add_health(Probe::Alive(String::new()), &at(10));
        assert_eq!(due(&probes, 5), None);
    }

    #[tokio::test(start_paused = true)]
    async fn kubelet_that_renews_its_lease_works_until_its_exit_or_until_a_renewal_is_overdue() {
        for (life_after_renewal, worked_until) in [(9, 14), (14, 19), (16, 5)] {
            let start = Instant::now();
            let at = |seconds| start + secs(seconds)..start + secs(seconds);
            let mut probes = Probes::new(start, PROCESS_GAP, secs(60));
            probes.add_health(down_for(), &at(0));
            probes.add_process(Probe::Alive("pid 7".to_owned()), &at(0));
            for (second, state) in [(0, "1"), (5, "2"), (6, "2")] {
                probes.add_lease(Ok(Some(state.to_owned())), &at(second));
            }
            probes.add_process(down_for(), &at(5 + life_after_renewal));
            let since = probes.silent_since(start + secs(22)).unwrap();
            assert_eq!(since, start + secs(worked_until), "{life_after_renewal}");
        }
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
            let state = state.map(|it| it.map(str::to_owned)).map_err(Why::from);
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
            let mut lease = Lease {
                recorded: Some(recorded.clone()),
                ..Lease::new(start, secs(10))
            };
            if outage {
                lease.add(Err("refused".into()), &at);
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
        probes.add_process(Probe::Alive(String::new()), &(start..start));
        probes.add_process(down_for(), &(start + secs(1)..start + secs(5)));
        assert_eq!(probes.process.since, start + secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn starts_are_counted_until_a_kubelet_works_or_nothing_starts_it_any_more() {
        let start = Instant::now();
        let at = |seconds| start + secs(seconds)..start + secs(seconds);
        let mut probes = Probes::new(start, PROCESS_GAP, secs(10));
        let counted = |probes: &Probes, second| {
            let starts = probes.recent_starts(start + secs(second));
            starts.map(|starts| (starts.count, starts.first.duration_since(start).as_secs()))
        };
        let run = |probes: &mut Probes, from: u64, to: u64| {
            for second in from..to {
                // Alive for two seconds of ten.
                let result = match second % 10 {
                    0 | 1 => Probe::Alive("pid 7".to_owned()),
                    _ => down_for(),
                };
                probes.add_process(result, &at(second));
            }
        };
        run(&mut probes, 0, 60);
        assert_eq!(counted(&probes, 60), Some((6, 0)));
        probes.add_health(down_for(), &at(60));
        run(&mut probes, 60, 70);
        assert_eq!(
            counted(&probes, 70),
            Some((7, 0)),
            "an answer that does not come proves nothing"
        );
        probes.add_health(Probe::Alive(String::new()), &at(70));
        assert_eq!(counted(&probes, 70), None);
        run(&mut probes, 70, 90);
        assert_eq!(counted(&probes, 90), Some((2, 70)));
        probes.add_lease(Ok(Some("1".to_owned())), &at(90));
        assert_eq!(counted(&probes, 90), Some((2, 70)), "the first state is no renewal");
        probes.add_lease(Ok(Some("2".to_owned())), &at(95));
        assert_eq!(counted(&probes, 95), None);
        run(&mut probes, 100, 120);
        assert_eq!(counted(&probes, 111 + 599), Some((2, 100)));
        assert_eq!(counted(&probes, 111 + 600), None);
        run(&mut probes, 1000, 1005);
        assert_eq!(counted(&probes, 1005), Some((1, 1000)));
    }

    #[tokio::test(start_paused = true)]
    async fn process_has_worked_only_if_an_answer_or_a_renewal_followed_its_start() {
        let start = Instant::now();
        let at = |seconds| start + secs(seconds)..start + secs(seconds);
        let mut probes = Probes::new(start, PROCESS_GAP, secs(10));
        let process = |pid: u32| Probe::Alive(format!("pid {pid}"));
        probes.add_process(process(7), &at(0));
        assert!(!probes.has_worked());
        probes.add_health(Probe::Alive(String::new()), &at(1));
        assert!(probes.has_worked());
        probes.add_process(process(8), &at(2));
        assert!(!probes.has_worked(), "another process");
        probes.add_lease(Ok(Some("1".to_owned())), &at(3));
        assert!(!probes.has_worked());
        probes.add_lease(Ok(Some("2".to_owned())), &at(4));
        assert!(probes.has_worked());
        probes.add_process(down_for(), &at(5));
        probes.add_process(process(8), &at(6));
        assert!(!probes.has_worked(), "it has started again");
    }
}
