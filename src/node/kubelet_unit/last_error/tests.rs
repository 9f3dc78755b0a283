use proptest::prelude::*;

use super::*;

fn entry(run: &str, message: &str) -> Entry {
    Entry {
        message: message.to_owned(),
        run: run.to_owned(),
    }
}

/// The error in these lines of one run.
fn error_in(lines: &[&str]) -> Option<String> {
    let entries: Vec<_> = lines.iter().map(|line| entry("1", line)).collect();
    last_error(&entries, 1)
}

/// As kubelet 1.37.2 wrote them, each at a start that failed.
#[test]
fn last_words_of_real_kubelets_say_why_they_exited() {
    for (lines, error) in [
        (
            &[
                r#"E1129 01:01:29.482843    8719 run.go:72] "command failed" err="failed to parse kubelet flag: unknown flag: --no-such-flag""#,
            ][..],
            "failed to parse kubelet flag: unknown flag: --no-such-flag",
        ),
        (
            &[
                "I1129 01:01:29.737340    8778 flags.go:63] FLAG: --volume-stats-agg-period=\"1m0s\"",
                "I1129 01:01:29.737383    8778 server.go:266] \"KubeletConfiguration\" configuration=<",
                "\tvolumeStatsAggPeriod: 1m0s",
                " >",
                r#"E1129 01:01:29.737430    8778 run.go:72] "command failed" err="failed to validate kubelet configuration, error: kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is unsupported and will be removed in a future release, path: &TypeMeta{Kind:,APIVersion:,}""#,
            ],
            "failed to validate kubelet configuration, error: kubelet is configured to not run on a host using cgroup v1. cgroup v1 \
             support is unsupported and will be removed in a future release, path: &TypeMeta{Kind:,APIVersion:,}",
        ),
        (
            &[
                r#"E1129 01:02:29.860085   11632 remote_runtime.go:1359] "RuntimeConfig from runtime service failed" err="rpc error: code = Unimplemented desc = unknown method RuntimeConfig for service runtime.v1.RuntimeService""#,
                "I1129 01:02:29.861210   11632 server.go:1254] \"--cgroups-per-qos enabled, but --cgroup-root was not specified. Defaulting to /\"",
                r#"E1129 01:02:29.863349   11632 run.go:72] "command failed" err="failed to run Kubelet: running with swap on is not supported, please disable swap or set --fail-swap-on flag to false""#,
            ],
            "failed to run Kubelet: running with swap on is not supported, please disable swap or set --fail-swap-on flag to false",
        ),
        (
            &[
                r#"E1129 01:02:07.393383   10659 bootstrap.go:267] "Unhandled Error" err="part of the existing bootstrap client certificate in expired.conf is expired: 2020-01-02 00:00:00 +0000 UTC" logger="UnhandledError""#,
                r#"E1129 01:02:07.393429   10659 run.go:72] "command failed" err="failed to run Kubelet: unable to load bootstrap kubeconfig: stat /no/bootstrap.conf: no such file or directory""#,
            ],
            "part of the existing bootstrap client certificate in expired.conf is expired: 2020-01-02 00:00:00 +0000 UTC; failed to \
             run Kubelet: unable to load bootstrap kubeconfig: stat /no/bootstrap.conf: no such file or directory",
        ),
        (
            &[
                r#"{"ts":1795914110025.9,"caller":"app/server.go:1254","msg":"Waiting","v":0}"#,
                r#"{"ts":1795914110026.2063,"caller":"cli/run.go:72","msg":"command failed","err":"failed to run Kubelet: no client provided, cannot use webhook authentication"}"#,
            ],
            "failed to run Kubelet: no client provided, cannot use webhook authentication",
        ),
        (
            &[
                r#"E1129 01:01:50.347008    9833 run.go:72] "command failed" err="failed to run Kubelet: validate service connection: validate CRI v1 runtime API for endpoint \"unix:///no/such.sock\": rpc error: code = Unavailable desc = connection error""#,
            ],
            "failed to run Kubelet: validate service connection: validate CRI v1 runtime API for endpoint \"unix:///no/such.sock\": rpc \
             error: code = Unavailable desc = connection error",
        ),
    ] {
        assert_eq!(error_in(lines).as_deref(), Some(error));
    }
}

#[test]
fn fatal_line_counts_more_than_errors_and_stacks_around_it() {
    for (lines, error) in [
        (
            &[
                "E1129 00:00:00.000001    1 kubelet.go:2] \"Error syncing pod\" err=\"later\"",
                "F1129 00:00:00.000002    1 server.go:3] cannot listen on 10250: address already in use",
                "goroutine 1 [running]:",
                "E1129 00:00:00.000003    1 kubelet.go:2] \"Stopped\"",
            ][..],
            "Error syncing pod: later; cannot listen on 10250: address already in use",
        ),
        (
            &[
                "panic: runtime error: invalid memory address",
                "goroutine 1 [running]:",
                "\tmain.go:1 +0x1",
            ],
            "panic: runtime error: invalid memory address",
        ),
        (
            &["Error: failed to parse kubelet flag: unknown flag: --x"],
            "failed to parse kubelet flag: unknown flag: --x",
        ),
        (
            &["time=\"2026-01-02T03:04:05Z\" level=fatal msg=\"kubelet exited: open \\\"/x\\\"\""],
            "kubelet exited: open \"/x\"",
        ),
        (
            &[
                "E1129 00:00:00.000001    1 run.go:72] \"command failed\" err=<",
                "\tfirst",
                "\tsecond",
                " >",
                "last",
            ],
            "first second",
        ),
        (
            &[
                "E1129 00:00:00.000001    1 kubelet.go:1] \"Unable to register\" node=\"a\"",
                "W1129 00:00:00.000002    1 kubelet.go:1] \"Not an error\" err=\"x\"",
                "I1129 00:00:00.000003    1 kubelet.go:1] Error: not an error either",
            ],
            "Unable to register node=\"a\"",
        ),
    ] {
        assert_eq!(error_in(lines).as_deref(), Some(error));
    }
    assert_eq!(
        error_in(&[
            "Flag --x has been deprecated",
            "I1129 00:00:00.000001    1 a.go:1] \"Starting\""
        ]),
        None
    );
}

#[test]
fn error_of_an_earlier_run_counts_only_while_the_unit_is_restarted() {
    let entries = [
        entry("1", "Error: oldest"),
        entry("2", "Error: before"),
        entry("3", "I1129 00:00:00.000001    1 a.go:1] \"Starting\""),
    ];
    assert_eq!(last_error(&entries, 1), None);
    assert_eq!(last_error(&entries, 2).as_deref(), Some("before"));
    assert_eq!(last_error(&[], 2), None);
    let goes_on = [
        &entries[..],
        &[entry("3", "E1129 00:00:00.000002    1 a.go:1] \"Unable to register\"")],
    ]
    .concat();
    assert_eq!(
        last_error(&goes_on, 2).as_deref(),
        Some("before"),
        "the run has not failed yet"
    );
}

#[test]
fn line_is_cut_and_cannot_control_a_terminal() {
    let hostile = format!("Error: \u{1b}[2J{}", "x".repeat(5000));
    let error = error_in(&[&hostile]).unwrap();
    assert!(error.len() <= MAX_LINE && error.starts_with("\\u{1b}[2Jx"), "{error}");
}

proptest! {
    #[test]
    fn any_line_is_read_without_a_panic(line in r#"[EF]?[0-9]{0,4} ?\PC{0,9}(\] )?"?[\\"a-zé=< ]{0,30}( err=")?\PC{0,9}"#) {
        let lines = [&*line, "E1129 0 1 a] \"command failed\" err=<", &*line];
        if let Some(error) = error_in(&lines) {
            prop_assert!(error.len() <= MAX_LINE);
        }
    }
}
