use std::ops::Range;

use super::{super::probes::Probe, *};

const AFTER: Duration = Duration::from_secs(45);
const LONG: Duration = Duration::from_secs(3600);

/// The result of one probe.
#[derive(Debug, Clone, Copy)]
enum Seen {
    Alive,
    /// For this many seconds.
    Down(u64),
    Unknown,
}
use Seen::{Alive, Down, Unknown};

/// What the probes have seen.
#[derive(Debug, Clone, Copy)]
struct Facts {
    process: Seen,
    healthz: Seen,
    lease: Seen,
    /// Seconds that the same process has been present.
    same: u64,
    /// It has answered at healthz or renewed the Lease.
    worked: bool,
}

fn role(facts: Facts, up: Duration, before: &Role) -> Role {
    let start = Instant::now();
    let now = start + LONG;
    let mut probes = Probes::new(start, LONG, LONG);
    for (probe, seen) in [
        (&mut probes.process, facts.process),
        (&mut probes.healthz, facts.healthz),
        (&mut probes.lease.probe, facts.lease),
    ] {
        let (result, seconds) = match seen {
            Alive => (Probe::Alive(String::new()), 0),
            Down(seconds) => (Probe::Down(String::new()), seconds),
            Unknown => (Probe::Unknown(String::new()), 0),
        };
        let first = now - Duration::from_secs(seconds);
        probe.add(result.clone(), &(first..first));
        probe.add(result, &(now..now));
    }
    if let Alive = facts.lease {
        probes.lease.renewed = Some(now);
    }
    probes.same = Some((String::new(), now - Duration::from_secs(facts.same)));
    probes.healthz.was_alive = facts.worked;
    decide_role(&probes, AFTER, up, before, now)
}

/// Probes without a result, and a moment so many seconds after now.
fn probes() -> (impl Fn(u64) -> Range<Instant>, Probes) {
    let start = Instant::now();
    let at = move |seconds| start + Duration::from_secs(seconds)..start + Duration::from_secs(seconds);
    (at, Probes::new(start, LONG, LONG))
}

/// The last process has worked.
fn exited([process, healthz, lease]: [Seen; 3]) -> Facts {
    Facts {
        process,
        healthz,
        lease,
        same: 0,
        worked: true,
    }
}

fn not_yet(seconds: u64) -> Role {
    Role::Standby(StandbyReason::TakeoverPending(Duration::from_secs(seconds)))
}

fn unknown(what: &str) -> Role {
    Role::Standby(StandbyReason::KubeletUnknown(format!("{what}: ")))
}

fn unseen() -> Role {
    Role::Standby(StandbyReason::KubeletElsewhere)
}

fn resuming() -> Role {
    Role::Standby(StandbyReason::AgentRestarted)
}

const HEALTHZ: &str = "whether healthz answers";
const LEASE: &str = "whether the kubelet renews its Lease";
const PROCESS: &str = "whether a kubelet runs here";

#[tokio::test(start_paused = true)]
async fn agent_is_standby_beside_a_kubelet_process() {
    use StandbyReason::{KubeletStarted as Started, KubeletUnresponsive as Unresponsive};
    let not_renewing = StandbyReason::KubeletAlive { is_lease_overdue: true };
    let working = StandbyReason::KubeletAlive {
        is_lease_overdue: false,
    };
    for (what, same, worked, healthz, lease, expected) in [
        ("all probes alive", 900, true, Alive, Alive, working.clone()),
        ("between two renewals", 900, true, Alive, Down(9), working.clone()),
        ("outage of the API server", 900, true, Alive, Unknown, working.clone()),
        ("unhealthy, and renewing", 900, true, Down(45), Down(9), working.clone()),
        ("healthy, and not renewing", 900, true, Alive, Down(45), not_renewing),
        ("neither", 900, true, Down(45), Down(45), Unresponsive),
        ("never worked", 900, false, Down(45), Down(45), Unresponsive),
        (
            "unhealthy, and an outage",
            900,
            true,
            Down(45),
            Unknown,
            working.clone(),
        ),
        ("the same, never worked", 900, false, Down(45), Unknown, Started),
        ("just started", 20, false, Down(45), Down(45), Started),
        ("just restarted", 4, false, Down(4), Down(9), Started),
        ("the same with an answer", 4, true, Alive, Down(9), working.clone()),
    ] {
        let facts = Facts {
            process: Alive,
            healthz,
            lease,
            same,
            worked,
        };
        // Whatever it was before.
        for before in [Role::Standby(working.clone()), resuming(), Role::Active] {
            assert_eq!(role(facts, LONG, &before), Role::Standby(expected.clone()), "{what}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn agent_is_active_once_no_kubelet_has_worked_for_the_threshold() {
    // Results of process, healthz and Lease.
    let standby = [
        ("all down", [Down(45), Down(45), Down(45)], Role::Active),
        ("restart of 30 s", [Down(30), Down(30), Down(45)], not_yet(15)),
        ("last start failed now", [Down(0), Down(45), Down(45)], Role::Active),
        ("the same, outage", [Down(0), Down(45), Unknown], unknown(LEASE)),
        ("the same, renewed", [Down(0), Down(45), Alive], not_yet(45)),
        ("answered", [Down(45), Down(3), Down(45)], not_yet(42)),
        ("was renewed", [Down(45), Down(45), Down(40)], not_yet(5)),
        ("last renewal", [Down(10), Down(45), Alive], not_yet(45)),
        ("unseen kubelet renews", [Down(45), Down(45), Alive], unseen()),
        ("unseen kubelet answers", [Down(45), Alive, Down(45)], unseen()),
        ("outage", [Down(45), Down(45), Unknown], unknown(LEASE)),
        ("no answer yet", [Down(45), Unknown, Down(45)], unknown(HEALTHZ)),
        ("no search", [Unknown, Down(45), Down(45)], unknown(PROCESS)),
    ];
    let active = [
        ("outage", [Down(45), Down(45), Unknown], Role::Active),
        ("healthz fails", [Down(45), Unknown, Down(45)], Role::Active),
        ("no search", [Unknown, Down(45), Down(45)], unknown(PROCESS)),
        ("renewed", [Down(45), Down(45), Alive], unseen()),
        ("answers", [Down(45), Alive, Down(45)], unseen()),
    ];
    let resuming = [
        ("no kubelet", [Down(2), Down(0), Down(0)], Role::Active),
        ("renewed", [Down(2), Unknown, Alive], unknown(HEALTHZ)),
        ("may start now", [Down(1), Down(0), Down(0)], resuming()),
        ("no Lease yet", [Down(2), Down(0), Unknown], resuming()),
        ("no answer yet", [Down(2), Unknown, Down(0)], resuming()),
        ("renewed meanwhile", [Down(2), Down(0), Alive], not_yet(45)),
        ("answers", [Down(2), Alive, Down(0)], unseen()),
        ("no search", [Unknown, Down(0), Down(0)], unknown(PROCESS)),
    ];
    for (before, cases) in [
        (
            Role::Standby(StandbyReason::KubeletAlive {
                is_lease_overdue: false,
            }),
            &standby[..],
        ),
        (Role::Active, &active),
        (self::resuming(), &resuming),
    ] {
        for (what, probes, expected) in cases {
            assert_eq!(role(exited(*probes), LONG, &before), *expected, "{what}, {before:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn node_that_boots_has_time_to_start_its_kubelet() {
    let booting = Role::Standby(StandbyReason::NodeBooting);
    for (up, process, healthz, expected) in [
        (100, Down(45), Down(45), &booting),
        (100, Down(0), Down(45), &booting),
        (20, Down(45), Down(10), &not_yet(35)),
        (BOOT_GRACE.as_secs(), Down(45), Down(45), &Role::Active),
    ] {
        let facts = exited([process, healthz, Down(45)]);
        let before = Role::Standby(StandbyReason::KubeletAlive {
            is_lease_overdue: false,
        });
        assert_eq!(
            role(facts, Duration::from_secs(up), &before),
            *expected,
            "{up} {facts:?}"
        );
    }
}

#[test]
fn only_a_recent_active_role_of_this_boot_is_resumed() {
    let mark = |boot: &str, since_boot| Mark {
        boot_id: boot.to_owned(),
        since_boot: Duration::from_secs(since_boot),
        wall: jiff::Timestamp::UNIX_EPOCH,
    };
    let now = mark("b", 1000);
    for (had, resumes) in [
        (None, false),
        (Some(mark("b", 999)), true),
        (Some(mark("b", 955)), true),
        (Some(mark("b", 954)), false),
        (Some(mark("a", 999)), false),
    ] {
        let had = had.map(|at| LastActive {
            at,
            lease: String::new(),
        });
        let role = initial_role(had.as_ref(), AFTER, &now);
        assert_eq!(role == Role::Standby(StandbyReason::AgentRestarted), resumes, "{had:?}");
        assert_ne!(role, Role::Active);
    }
}

#[tokio::test(start_paused = true)]
async fn answer_of_an_exited_process_does_not_show_another_kubelet() {
    let (at, mut probes) = probes();
    probes.process.add(Probe::Alive(String::new()), &at(1));
    probes.healthz.add(Probe::Alive(String::new()), &at(1));
    probes.process.add(Probe::Down(String::new()), &at(2));
    probes.lease.probe.add(Probe::Down(String::new()), &at(2));
    let role = |probes: &Probes| {
        decide_role(
            probes,
            AFTER,
            LONG,
            &Role::Standby(StandbyReason::KubeletAlive {
                is_lease_overdue: false,
            }),
            at(3).end,
        )
    };
    assert_eq!(role(&probes), not_yet(45));
    probes.healthz.add(Probe::Alive(String::new()), &at(3));
    assert!(matches!(role(&probes), Role::Standby(StandbyReason::KubeletElsewhere)));
}

#[tokio::test(start_paused = true)]
async fn time_until_the_takeover_decreases_between_two_probes() {
    let (at, mut probes) = probes();
    for probe in [&mut probes.process, &mut probes.healthz, &mut probes.lease.probe] {
        probe.add(Probe::Down(String::new()), &at(1));
    }
    let before = Role::Standby(StandbyReason::KubeletAlive {
        is_lease_overdue: false,
    });
    let left = |now| decide_role(&probes, AFTER, LONG, &before, at(now).end);
    assert_eq!(left(1), not_yet(45));
    assert_eq!(left(4), not_yet(42));
    // No probe has shown it yet.
    assert_eq!(left(2 + AFTER.as_secs()), not_yet(0));
}

/// What it did in its last moments shows only in probes after that.
#[tokio::test(start_paused = true)]
async fn gap_begins_with_probes_of_healthz_and_lease_after_the_exit() {
    let (at, mut probes) = probes();
    let down = || Probe::Down(String::new());
    let state = || Ok(Some("1".to_owned()));
    probes.add_process(Probe::Alive("pid 7".to_owned()), &at(0));
    for second in [1, 50] {
        probes.add_health(down(), &at(second));
        probes.add_lease(state(), &at(second));
    }
    probes.add_process(down(), &at(51));
    let role = |probes: &Probes| {
        decide_role(
            probes,
            AFTER,
            LONG,
            &Role::Standby(StandbyReason::KubeletStarted),
            at(52).end,
        )
    };
    assert_eq!(role(&probes), not_yet(0));
    probes.add_health(down(), &at(52));
    assert_eq!(role(&probes), not_yet(0));
    let mut renewed = probes.clone();
    renewed.add_lease(Ok(Some("2".to_owned())), &at(52));
    assert_eq!(role(&renewed), not_yet(45));
    probes.add_lease(state(), &at(52));
    assert_eq!(role(&probes), Role::Active);
}

/// The process probe must be as young as the conclusion, too.
#[tokio::test(start_paused = true)]
async fn takeover_needs_a_process_probe_after_the_threshold() {
    let (at, mut probes) = probes();
    for second in [0, AFTER.as_secs()] {
        probes.add_health(Probe::Down(String::new()), &at(second));
        probes.add_lease(Ok(None), &at(second));
    }
    probes.add_process(Probe::Down(String::new()), &at(0));
    probes.add_process(Probe::Down(String::new()), &at(AFTER.as_secs() - 1));
    let before = Role::Standby(StandbyReason::KubeletAlive {
        is_lease_overdue: false,
    });
    let role = |probes: &Probes| decide_role(probes, AFTER, LONG, &before, at(AFTER.as_secs()).end);
    assert_eq!(role(&probes), not_yet(0));
    probes.add_process(Probe::Down(String::new()), &at(AFTER.as_secs()));
    assert_eq!(role(&probes), Role::Active);
}

#[tokio::test(start_paused = true)]
async fn kubelet_is_failing_from_its_second_start_without_an_answer_for_the_threshold() {
    let (at, mut probes) = probes();
    let failing = |probes: &Probes, second| failing_starts(probes, AFTER, at(second).end).map(|starts| starts.count);
    probes.add_health(Probe::Down(String::new()), &at(0));
    probes.add_lease(Ok(None), &at(0));
    let start_at = |probes: &mut Probes, second: u64| {
        probes.add_process(Probe::Alive(second.to_string()), &at(second));
        probes.add_process(Probe::Down(String::new()), &at(second + 1));
    };
    start_at(&mut probes, 60);
    assert_eq!(failing(&probes, 62), None, "a kubelet that was down has started once");
    start_at(&mut probes, 70);
    assert_eq!(failing(&probes, 72), Some(2));
    probes.add_health(Probe::Unknown(String::new()), &at(73));
    assert_eq!(failing(&probes, 73), None);
    probes.add_health(Probe::Down(String::new()), &at(74));
    assert_eq!(failing(&probes, 118), None, "not for the threshold");
    assert_eq!(failing(&probes, 119), Some(2));
    for second in (120..=170).step_by(5) {
        probes.add_process(Probe::Alive("stays".to_owned()), &at(second));
    }
    assert_eq!(failing(&probes, 164), Some(3));
    assert_eq!(failing(&probes, 165), None, "it does not start again");
}

#[tokio::test(start_paused = true)]
async fn only_a_process_that_was_healthy_once_may_be_stopped() {
    let (at, mut probes) = probes();
    let process = |pid: u32| Probe::Alive(format!("kubelet (pid {pid})"));
    probes.add_process(process(5), &at(0));
    assert!(may_fence(&probes).unwrap_err().contains("the address may be"));
    probes.add_health(Probe::Alive(String::new()), &at(45));
    assert_eq!(may_fence(&probes), Ok(()));
    // It restarted between two probes, perhaps with another healthz address.
    probes.add_process(process(6), &at(46));
    assert!(may_fence(&probes).unwrap_err().contains("the address may be"));
    probes.add_health(Probe::Alive(String::new()), &at(47));
    assert_eq!(may_fence(&probes), Ok(()));
}
