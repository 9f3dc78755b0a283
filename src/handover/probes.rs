//! Probes of the kubelet: its process, its healthz endpoint, its Lease. Pure.
//!
//! Only what this agent has observed counts, on its own monotonic clock and without a gap. Times that others have written do not.

use std::{ops::Range, time::Duration};

use tokio::time::Instant;

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
    pub look: Probe,
    /// Since when all results are the same.
    pub since: Instant,
    /// A probe has found the present kubelet alive at least once.
    pub was_alive: bool,
    looked: Instant,
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
    last: Option<State>,
    /// The last state that an earlier run of the agent has recorded, until this run has read one.
    recorded: Option<State>,
}

/// A value that changes with each renewal; `None` if there is no Lease.
pub type State = Option<String>;

/// All probes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probes {
    /// Kubelet processes of this node.
    pub process: ProbeHistory,
    /// Since when kubelet processes are present, or restart without a long pause.
    pub around: Option<Instant>,
    /// The last process, and since when it is present without a gap.
    pub same: Option<(String, Instant)>,
    /// How many processes have started since the healthz endpoint last answered.
    pub tries: u32,
    /// Its healthz endpoint.
    pub healthz: ProbeHistory,
    /// The Lease of this Node.
    pub lease: Lease,
}

// === impl ProbeHistory ===

impl ProbeHistory {
    /// No probe yet. The next ones must not be further apart than `gap`.
    pub fn unseen(now: Instant, gap: Duration) -> Self {
        Self {
            look: Probe::Unknown("it was not looked at yet".to_owned()),
            since: now,
            was_alive: false,
            looked: now,
            gap,
        }
    }

    /// Adds a result. It was true at some moment of the probe, which lasted `over`.
    pub fn see(&mut self, look: Probe, over: &Range<Instant>) {
        let gap = over.start.saturating_duration_since(self.looked) > self.gap;
        if gap || std::mem::discriminant(&look) != std::mem::discriminant(&self.look) {
            self.since = over.end;
        }
        self.was_alive |= matches!(look, Probe::Alive(_));
        (self.look, self.looked) = (look, over.start);
    }

    /// How long all results have been Down, up to the last one; `None` if that one is too old.
    pub fn down_for(&self, now: Instant) -> Option<Duration> {
        self.holds(now, matches!(self.look, Probe::Down(_)))
    }

    /// When a probe could first show a downtime of `silence`, if none has shown it yet.
    pub fn due(&self, silence: Duration) -> Option<Instant> {
        let due = self.since + silence;
        (matches!(self.look, Probe::Down(_)) && self.looked < due).then_some(due)
    }

    /// Whether the last probe began before that moment.
    pub fn is_older_than(&self, moment: Instant) -> bool {
        self.looked < moment
    }

    /// Whether the last result is Alive and fresh.
    pub fn is_alive(&self, now: Instant) -> bool {
        self.holds(now, matches!(self.look, Probe::Alive(_))).is_some()
    }

    fn holds(&self, now: Instant, so: bool) -> Option<Duration> {
        let fresh = now.saturating_duration_since(self.looked) <= self.gap;
        (so && fresh).then(|| self.looked.saturating_duration_since(self.since))
    }

    /// Why the last result says nothing, if so.
    pub fn unknown(&self, now: Instant) -> Option<&str> {
        let of_old = now.saturating_duration_since(self.looked) > self.gap;
        match &self.look {
            Probe::Unknown(why) => Some(why),
            _ if of_old => Some("the last look takes too long"),
            _ => None,
        }
    }
}

// === impl Probe ===

impl Probe {
    /// In words.
    pub fn told(&self) -> &str {
        match self {
            Self::Alive(what) | Self::Down(what) | Self::Unknown(what) => what,
        }
    }

    /// In one word, as in `status`.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Alive(_) => "lives",
            Self::Down(_) => "silent",
            Self::Unknown(_) => "unknown",
        }
    }
}

// === impl Lease ===

impl Lease {
    /// No probe yet.
    pub fn unseen(now: Instant, gap: Duration) -> Self {
        Self {
            probe: ProbeHistory::unseen(now, gap),
            renewed: None,
            last: None,
            recorded: None,
        }
    }

    /// The same with the last state that an earlier run of the agent has recorded.
    #[must_use]
    pub fn seen_before(self, state: State) -> Self {
        Self {
            recorded: Some(state),
            ..self
        }
    }

    /// Its state at the last successful probe.
    pub fn state(&self) -> Option<&State> {
        self.last.as_ref()
    }

    /// Adds a result. An error of the API server is Unknown and starts the history again: a kubelet could not renew its Lease
    /// either.
    pub fn see(&mut self, state: Result<State, String>, over: &Range<Instant>) {
        let state = match state {
            Ok(state) => state,
            Err(why) => {
                self.last = None;
                self.probe.see(Probe::Unknown(why), over);
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
        let look = if renewed {
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
        self.probe.see(look, over);
        if renewed {
            (self.probe.since, self.renewed) = (over.end, Some(over.end));
        } else if let Some(since) = since {
            self.probe.since = since;
        }
    }
}

// === impl Probes ===

impl Probes {
    /// No probe yet. Processes must be probed at least every `look_gap`, healthz and Lease every `ask_gap`.
    pub fn unseen(now: Instant, look_gap: Duration, ask_gap: Duration) -> Self {
        Self {
            process: ProbeHistory::unseen(now, look_gap),
            around: None,
            same: None,
            tries: 0,
            healthz: ProbeHistory::unseen(now, ask_gap),
            lease: Lease::unseen(now, ask_gap),
        }
    }

    /// Whether the last result of every probe is Down.
    pub fn all_are_down(&self, now: Instant) -> bool {
        self.each().iter().all(|(_, probe)| probe.down_for(now).is_some())
    }

    /// How long the same process has been present.
    pub fn one_process(&self, now: Instant) -> Option<Duration> {
        let (_, since) = self.same.as_ref().filter(|_| self.process.is_alive(now))?;
        Some(now.saturating_duration_since(*since))
    }

    /// The first moment after `after` when one of the probes could show a downtime of `silence`.
    pub fn due(&self, silence: Duration, after: Instant) -> Option<Instant> {
        let due = self.each().into_iter().filter_map(|(_, probe)| probe.due(silence));
        due.filter(|due| *due > after).min()
    }

    /// Each probe with its name.
    pub fn each(&self) -> [(&'static str, &ProbeHistory); 3] {
        [
            ("process", &self.process),
            ("healthz", &self.healthz),
            ("lease", &self.lease.probe),
        ]
    }

    /// Adds a result of the process probe. After `away` without a process no kubelet is around.
    pub fn see_process(&mut self, look: Probe, over: &Range<Instant>, away: Duration) {
        let was_gone = matches!(self.process.look, Probe::Down(_));
        self.process.see(look, over);
        let looked = over.end;
        if let Probe::Alive(process) = &self.process.look {
            let is_another = was_gone || self.same.as_ref().is_none_or(|(before, _)| before != process);
            self.tries += u32::from(is_another);
            // Or the same process was not seen for a while.
            if is_another || self.process.since == looked {
                self.same = Some((process.clone(), looked));
            }
            if is_another {
                // The new process may have another healthz address.
                let tells = matches!(self.healthz.look, Probe::Alive(_));
                self.healthz.was_alive = tells && !self.healthz.is_older_than(looked);
            }
        }
        if matches!(self.healthz.look, Probe::Alive(_)) {
            self.tries = 0;
        }
        match &self.process.look {
            Probe::Alive(_) => drop(self.around.get_or_insert(looked)),
            _ if self.process.down_for(looked).is_some_and(|down_for| down_for >= away) => {
                (self.around, self.tries) = (None, 0);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAP: Duration = Duration::from_secs(5);

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn down_for() -> Probe {
        Probe::Down(String::new())
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_is_due_when_it_may_be_the_last_one_that_it_takes() {
        let start = Instant::now();
        let mut probe = ProbeHistory::unseen(start, GAP);
        let due = |probe: &ProbeHistory| probe.due(secs(7));
        assert_eq!(due(&probe), None, "nothing of it is known");
        // A look that took a second.
        probe.see(down_for(), &(start..start + secs(1)));
        probe.see(down_for(), &(start + secs(5)..start + secs(5)));
        assert_eq!(due(&probe), Some(start + secs(8)));
        probe.see(down_for(), &(start + secs(8)..start + secs(9)));
        assert_eq!(due(&probe), None, "that look has shown it");
        probe.see(Probe::Alive(String::new()), &(start + secs(10)..start + secs(10)));
        assert_eq!(due(&probe), None);
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_was_looked_at_all_the_time_has_lasted() {
        let start = Instant::now();
        let mut probe = ProbeHistory::unseen(start, GAP);
        let at = |seconds| start + secs(seconds)..start + secs(seconds);
        probe.see(down_for(), &at(0));
        probe.see(down_for(), &at(5));
        assert_eq!(probe.down_for(start + secs(6)), Some(secs(5)));
        assert_eq!(probe.down_for(start + secs(11)), None, "nobody has looked since");
        probe.see(down_for(), &at(11));
        assert_eq!(
            probe.down_for(start + secs(11)),
            Some(secs(0)),
            "after a gap it begins again"
        );
        probe.see(Probe::Unknown(String::new()), &at(12));
        assert_eq!(probe.down_for(start + secs(12)), None);
        probe.see(down_for(), &at(13));
        assert_eq!(probe.down_for(start + secs(13)), Some(secs(0)));
    }

    #[tokio::test(start_paused = true)]
    async fn health_that_is_asked_for_a_moment_late_was_looked_at_all_the_time() {
        let start = Instant::now();
        let mut probes = Probes::unseen(start, GAP, 3 * GAP);
        let late = GAP + Duration::from_millis(1);
        for n in 0..10 {
            let at = start + n * late;
            assert!(
                n == 0 || probes.healthz.unknown(at).is_none(),
                "no answer can be there yet"
            );
            probes.healthz.see(down_for(), &(at..at));
        }
        assert_eq!(probes.healthz.down_for(start + 9 * late), Some(9 * late));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_silent_since_it_was_first_seen_as_it_is() {
        let start = Instant::now();
        let mut lease = Lease::unseen(start, secs(10));
        let mut see = |state: Result<Option<&str>, &str>, after: u64| {
            let state = state.map(|it| it.map(str::to_owned)).map_err(str::to_owned);
            lease.see(state, &(start + secs(after)..start + secs(after)));
            (
                lease.probe.is_alive(start + secs(after)),
                lease.probe.down_for(start + secs(after)),
            )
        };
        assert_eq!(
            see(Ok(Some("1")), 0),
            (false, Some(secs(0))),
            "the first one is no change"
        );
        assert_eq!(see(Ok(Some("1")), 5), (false, Some(secs(5))));
        assert_eq!(see(Ok(Some("2")), 10), (true, None));
        assert_eq!(
            see(Ok(Some("2")), 15),
            (false, Some(secs(5))),
            "since the look that first showed it"
        );
        assert_eq!(see(Ok(Some("3")), 20), (true, None));
        assert_eq!(see(Ok(Some("4")), 25), (true, None));
        assert_eq!(see(Ok(Some("4")), 30), (false, Some(secs(5))));
        assert_eq!(see(Err("refused"), 35), (false, None));
        assert_eq!(
            see(Ok(Some("4")), 40),
            (false, Some(secs(0))),
            "an outage counts for nothing"
        );
        assert_eq!(
            see(Ok(None), 45),
            (false, Some(secs(5))),
            "one that is deleted is not renewed"
        );
        assert_eq!(see(Ok(Some("9")), 50), (true, None), "one that is made is");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_was_recorded_tells_by_the_first_look_whether_somebody_has_touched_it() {
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
            let mut lease = Lease::unseen(start, secs(10)).seen_before(recorded.clone());
            if outage {
                lease.see(Err("refused".to_owned()), &at);
            }
            lease.see(Ok(seen.clone()), &at);
            assert_eq!(lease.probe.is_alive(start), renewed, "{recorded:?} {outage} {seen:?}");
            assert_eq!(lease.probe.down_for(start).is_some(), !renewed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_ends_during_a_look_at_all_of_them_is_gone_since_the_end_of_that_look() {
        let start = Instant::now();
        let mut probes = Probes::unseen(start, GAP, secs(10));
        probes.see_process(Probe::Alive(String::new()), &(start..start), secs(45));
        probes.see_process(down_for(), &(start + secs(1)..start + secs(5)), secs(45));
        assert_eq!(probes.process.since, start + secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn a_kubelet_that_comes_and_goes_is_around_until_it_stays_away() {
        let start = Instant::now();
        let mut probes = Probes::unseen(start, GAP, secs(10));
        for second in 0..60 {
            let is_alive = second % 10 == 0;
            let look = if is_alive {
                Probe::Alive(String::new())
            } else {
                down_for()
            };
            probes.see_process(look, &(start + secs(second)..start + secs(second)), secs(45));
        }
        assert_eq!(probes.around, Some(start));
        for second in 60..97 {
            probes.see_process(down_for(), &(start + secs(second)..start + secs(second)), secs(45));
        }
        assert_eq!(probes.around, None);
    }
}
