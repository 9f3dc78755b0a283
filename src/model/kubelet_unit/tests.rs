use super::*;

const LINE: &str = "failed to parse kubelet flag: unknown flag: --no-such-flag";

fn unit(active: &str, sub: &str, change: fn(&mut KubeletUnit)) -> KubeletUnit {
    let mut unit = KubeletUnit {
        unit: "kubelet.service".to_owned(),
        load_state: "loaded".to_owned(),
        unit_file_state: "enabled".to_owned(),
        active_state: active.to_owned(),
        sub_state: sub.to_owned(),
        result: "success".to_owned(),
        since: Some(Timestamp::UNIX_EPOCH),
        ..KubeletUnit::default()
    };
    change(&mut unit);
    unit
}

fn failed(unit: &mut KubeletUnit) {
    unit.result = "exit-code".to_owned();
    unit.exit = Some(UnitExit::Code(1));
    unit.restarts = 7;
    unit.last_error = Some(LINE.to_owned());
}

fn hanging(unit: &mut KubeletUnit) {
    unit.main_process = Some(MainProcess {
        pid: 42,
        is_stopped: false,
        waits_in: Some("rpc_wait_bit_killable".to_owned()),
    });
}

#[test]
fn each_state_of_the_unit_is_said_with_a_command_that_helps() {
    for (unit, details, remedy) in [
        (
            unit("activating", "auto-restart", failed),
            "kubelet.service fails and is restarted each time (7 restarts): exit code 1; last error: failed to parse kubelet flag: unknown \
             flag: --no-such-flag",
            "systemctl restart kubelet.service",
        ),
        (
            unit("failed", "failed", |it| {
                failed(it);
                it.result = "start-limit-hit".to_owned();
            }),
            "kubelet.service has failed too often and is not restarted any more: exit code 1; last error: failed \
             to parse kubelet flag: unknown flag: --no-such-flag",
            "systemctl reset-failed kubelet.service",
        ),
        (
            unit("failed", "failed", |it| {
                it.result = "oom-kill".to_owned();
                it.exit = Some(UnitExit::Signal("SIGKILL".to_owned()));
            }),
            "kubelet.service has failed: oom-kill, killed by SIGKILL",
            "journalctl -u kubelet.service -n 50",
        ),
        (
            unit("failed", "failed", |it| it.result = "exit-code".to_owned()),
            "kubelet.service has failed: exit-code",
            "journalctl",
        ),
        (
            unit("inactive", "dead", |_| {}),
            "kubelet.service is stopped since 1970-01-01 00:00:00 UTC, by a user or a program, or it exited with code 0",
            "systemctl start kubelet.service",
        ),
        (
            unit("inactive", "dead", |it| {
                (it.unit_file_state, it.since) = ("disabled".to_owned(), None);
            }),
            "kubelet.service is stopped, and disabled, by a user or a program, or it exited with code 0",
            "systemctl enable --now kubelet.service",
        ),
        (
            unit("inactive", "dead", |it| it.has_unmet_condition = true),
            "kubelet.service is stopped since 1970-01-01 00:00:00 UTC: a condition of the unit, such as ConditionPathExists=, is not met",
            "it names the condition",
        ),
        (
            unit("inactive", "dead", |it| it.load_state = "masked".to_owned()),
            "kubelet.service is masked",
            "systemctl unmask kubelet.service",
        ),
        (
            unit("inactive", "dead", |it| it.load_state = "bad-setting".to_owned()),
            "kubelet.service cannot be loaded (bad-setting)",
            "systemctl daemon-reload",
        ),
        (
            unit("activating", "start-pre", |_| {}),
            "kubelet.service is starting (start-pre) since 1970-01-01 00:00:00 UTC",
            "systemctl status kubelet.service",
        ),
        (
            unit("active", "running", |it| {
                hanging(it);
                it.last_error = Some("node \"a\" not found".to_owned());
            }),
            "kubelet.service runs since 1970-01-01 00:00:00 UTC, main process 42, in uninterruptible sleep in \
             rpc_wait_bit_killable; last error: node \"a\" not found",
            "systemctl restart kubelet.service",
        ),
        (
            unit("active", "running", |it| {
                it.main_process = Some(MainProcess {
                    pid: 42,
                    is_stopped: true,
                    waits_in: None,
                });
            }),
            "kubelet.service runs since 1970-01-01 00:00:00 UTC, main process 42, which a signal has stopped",
            "kill -CONT 42",
        ),
        (
            unit("deactivating", "final-sigkill", |it| {
                hanging(it);
                it.journal_unread = Some("no journalctl".to_owned());
            }),
            "kubelet.service is being stopped (final-sigkill) since 1970-01-01 00:00:00 UTC, main process 42, in \
             uninterruptible sleep in rpc_wait_bit_killable; its journal cannot be read: no journalctl",
            "systemctl kill --signal=KILL",
        ),
    ] {
        assert_eq!(unit.details(), details);
        assert!(unit.remedy().contains(remedy), "{}: {}", unit.details(), unit.remedy());
        assert!(unit.remedy().starts_with("run `"), "{}", unit.remedy());
    }
}

#[test]
fn summary_of_a_unit_that_fails_the_same_way_stays_the_same() {
    let waits = unit("activating", "auto-restart", failed);
    let mut again = unit("activating", "auto-restart", failed);
    (again.restarts, again.since) = (8, None);
    // Its next run has neither exited nor written anything.
    let runs = unit("active", "running", |it| {
        hanging(it);
        it.restarts = 8;
    });
    let runs = runs.after(Some(&waits));
    assert_eq!(runs.state(), UnitState::Restarting);
    for other in [&again, &runs] {
        assert_eq!(waits.summary(), other.summary());
        assert_ne!(waits.details(), other.details());
    }
}

#[test]
fn exit_of_an_earlier_run_is_not_that_of_a_unit_that_a_user_has_started() {
    let waits = unit("activating", "auto-restart", failed);
    // A start by a user resets NRestarts.
    let started = unit("active", "running", hanging).after(Some(&waits));
    assert_eq!((started.exit, started.last_error), (None, None));
    let stopped = unit("inactive", "dead", |_| {}).after(Some(&waits));
    assert_eq!(stopped.exit, None);
}
