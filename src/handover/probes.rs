//! Signs of a kubelet's life, and for how long this agent has seen each of them. Pure.
//!
//! Nothing is believed that another clock says: what counts is how long it was looked at here, without a gap.

use std::{ops::Range, time::Duration};

use tokio::time::Instant;

/// What one look has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// A kubelet lives.
    Alive(String),
    /// Nothing of one is to be seen.
    Down(String),
    /// It could not be seen whether.
    Unknown(String),
}

/// One kind of sign, over time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeHistory {
    /// The last look.
    pub look: Probe,
    /// Since when each look has shown the same.
    pub since: Instant,
    /// Some look has shown that a kubelet lives, since that one is there.
    pub was_alive: bool,
    looked: Instant,
    /// Between two looks that are further apart anything may have happened.
    gap: Duration,
}

/// The kubelet's Lease, which says nothing by itself: only its changes do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// What was seen of it.
    pub probe: ProbeHistory,
    /// When it was last seen renewed.
    pub renewed: Option<Instant>,
    /// Its last state.
    last: Option<State>,
    /// The state that an agent before this one has seen last, until this one has seen any.
    recorded: Option<State>,
}

/// What changes whenever a kubelet renews its Lease; nothing where there is no Lease.
pub type State = Option<String>;

/// All signs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probes {
    /// Kubelet processes of this node.
    pub process: ProbeHistory,
    /// Since when kubelets come, or come and go without staying away for long.
    pub around: Option<Instant>,
    /// The process that was seen last, and since when without a gap.
    pub same: Option<(String, Instant)>,
    /// How many processes have come since one of them has told its health.
    pub tries: u32,
    /// What answers where the kubelet tells its health.
    pub healthz: ProbeHistory,
    /// The Lease of this Node.
    pub lease: Lease,
}

// === impl Sign ===

impl ProbeHistory {
    /// Nothing was seen yet; looks are to come at least once in `gap`.
    pub fn unseen(now: Instant, gap: Duration) -> Self {
        Self {
            look: Probe::Unknown("it was not looked at yet".to_owned()),
            since: now,
            was_alive: false,
            looked: now,
            gap,
        }
    }

    /// A look, from its begin to its end: what it shows was so at some moment between.
    pub fn see(&mut self, look: Probe, over: &Range<Instant>) {
        let gap = over.start.saturating_duration_since(self.looked) > self.gap;
        if gap || std::mem::discriminant(&look) != std::mem::discriminant(&self.look) {
            self.since = over.end;
        }
        self.was_alive |= matches!(look, Probe::Alive(_));
        (self.look, self.looked) = (look, over.start);
    }

    /// How long nothing of a kubelet was seen, up to the last look; nothing where that look is of old.
    pub fn down_for(&self, now: Instant) -> Option<Duration> {
        self.holds(now, matches!(self.look, Probe::Down(_)))
    }

    /// From when on a look could show that it has been silent for so long, which none has shown yet.
    pub fn due(&self, silence: Duration) -> Option<Instant> {
        let due = self.since + silence;
        (matches!(self.look, Probe::Down(_)) && self.looked < due).then_some(due)
    }

    /// Whether the last look was begun before that moment.
    pub fn is_older_than(&self, moment: Instant) -> bool {
        self.looked < moment
    }

    /// Whether a kubelet was seen to live, and not long ago.
    pub fn is_alive(&self, now: Instant) -> bool {
        self.holds(now, matches!(self.look, Probe::Alive(_))).is_some()
    }

    fn holds(&self, now: Instant, so: bool) -> Option<Duration> {
        let fresh = now.saturating_duration_since(self.looked) <= self.gap;
        (so && fresh).then(|| self.looked.saturating_duration_since(self.since))
    }

    /// Why it tells nothing, if it does not.
    pub fn unknown(&self, now: Instant) -> Option<&str> {
        let of_old = now.saturating_duration_since(self.looked) > self.gap;
        match &self.look {
            Probe::Unknown(why) => Some(why),
            _ if of_old => Some("the last look takes too long"),
            _ => None,
        }
    }
}

// === impl Look ===

impl Probe {
    /// In words.
    pub fn told(&self) -> &str {
        match self {
            Self::Alive(what) | Self::Down(what) | Self::Unknown(what) => what,
        }
    }

    /// In one word.
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
    /// Nothing was seen yet.
    pub fn unseen(now: Instant, gap: Duration) -> Self {
        Self {
            probe: ProbeHistory::unseen(now, gap),
            renewed: None,
            last: None,
            recorded: None,
        }
    }

    /// The same, where an agent before this one has seen it last in this state.
    #[must_use]
    pub fn seen_before(self, state: State) -> Self {
        Self {
            recorded: Some(state),
            ..self
        }
    }

    /// Its state at the last look, if that has shown any.
    pub fn state(&self) -> Option<&State> {
        self.last.as_ref()
    }

    /// A look. One that an API server did not answer shows nothing, and makes what was seen before it worthless: no kubelet
    /// could renew its Lease meanwhile.
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
        // Who has deleted it may have been before or after a kubelet that nobody has seen.
        let is_other = recorded.is_some() && recorded.as_ref() != Some(&state);
        let before = self.last.replace(state).or(recorded);
        let (before, state) = (before.as_ref(), self.last.as_ref());
        // The first one is compared with nothing, and one that vanishes is renewed by nobody.
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
        // What was seen renewed has stayed as it was since that look.
        let since = self.probe.is_alive(over.start).then_some(self.probe.since);
        self.probe.see(look, over);
        if renewed {
            (self.probe.since, self.renewed) = (over.end, Some(over.end));
        } else if let Some(since) = since {
            self.probe.since = since;
        }
    }
}

// === impl Signs ===

impl Probes {
    /// Nothing was seen yet; processes are looked at, and health and Lease asked for, at least once in those.
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

    /// Whether each look has shown nothing of a kubelet, since whenever.
    pub fn all_are_down(&self, now: Instant) -> bool {
        self.each().iter().all(|(_, probe)| probe.down_for(now).is_some())
    }

    /// For how long one and the same process has been there.
    pub fn one_process(&self, now: Instant) -> Option<Duration> {
        let (_, since) = self.same.as_ref().filter(|_| self.process.is_alive(now))?;
        Some(now.saturating_duration_since(*since))
    }

    /// The first moment after that one from which on a look at one of them could show that it has been silent for so long.
    pub fn due(&self, silence: Duration, after: Instant) -> Option<Instant> {
        let due = self.each().into_iter().filter_map(|(_, probe)| probe.due(silence));
        due.filter(|due| *due > after).min()
    }

    /// Each sign with its name.
    pub fn each(&self) -> [(&'static str, &ProbeHistory); 3] {
        [
            ("process", &self.process),
            ("healthz", &self.healthz),
            ("lease", &self.lease.probe),
        ]
    }

    /// A look at the processes. One that stays away for as long as `away` is not around any more.
    pub fn see_process(&mut self, look: Probe, over: &Range<Instant>, away: Duration) {
        let was_gone = matches!(self.process.look, Probe::Down(_));
        self.process.see(look, over);
        let looked = over.end;
        if let Probe::Alive(process) = &self.process.look {
            let is_another = was_gone || self.same.as_ref().is_none_or(|(before, _)| before != process);
            self.tries += u32::from(is_another);
            // Or the same was not to be seen for a while.
            if is_another || self.process.since == looked {
                self.same = Some((process.clone(), looked));
            }
            if is_another {
                // Another one may be told to tell it elsewhere.
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
