use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;
use crate::node::systemd::double::{Behavior, Calls, bus};

const ACTS: Mode = Mode::Acts { kubelet_drop_in: false };

struct Host {
    dir: TempDir,
    files: Files,
    systemd: Systemd,
    calls: Calls,
}

impl Host {
    fn new(behaviors: &'static [Behavior]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (systemd, calls) = bus(dir.path(), behaviors);
        let files = Files {
            settings: dir.path().join("default"),
            drop_in: dir.path().join("kubelet.service.d/10-pod-teardown.conf"),
            program: "/opt/bin/pod-teardown".into(),
        };
        fs::write(&files.settings, "# mine\nPOD_TEARDOWN_PODS=observe\nRUST_LOG=debug\n").unwrap();
        Self {
            dir,
            files,
            systemd,
            calls,
        }
    }

    async fn set(&self, mode: Mode, now: bool) -> Result<String, EnableError> {
        set(&self.files, &self.systemd, mode, now).await
    }

    fn settings(&self) -> String {
        fs::read_to_string(&self.files.settings).unwrap()
    }

    fn calls(&self, method: &str) -> usize {
        self.calls.lock().unwrap().iter().filter(|call| *call == method).count()
    }
}

#[tokio::test]
async fn enable_changes_one_line_and_restarts_only_with_now() {
    let host = Host::new(&[Behavior::NotLoaded]);
    let done = host.set(ACTS, false).await.unwrap();
    assert_eq!(host.settings(), "# mine\nPOD_TEARDOWN_PODS=auto\nRUST_LOG=debug\n");
    assert!(done.contains("It was observe.") && done.contains(RESTART), "{done}");
    assert_eq!((host.calls("RestartUnit"), host.calls("Reload")), (0, 0));

    let done = host.set(ACTS, true).await.unwrap();
    assert!(
        done.contains("was already set") && done.contains("was restarted"),
        "{done}"
    );
    assert_eq!(host.calls("RestartUnit"), 1);
    assert!(!host.files.drop_in.exists());

    host.set(Mode::Observes, false).await.unwrap();
    assert_eq!(host.settings(), "# mine\nPOD_TEARDOWN_PODS=observe\nRUST_LOG=debug\n");
}

/// As a power cut may leave them.
#[tokio::test]
async fn empty_or_missing_settings_get_those_of_a_first_installation() {
    let host = Host::new(&[Behavior::NotLoaded]);
    for settings in [Some(""), None] {
        match settings {
            Some(text) => fs::write(&host.files.settings, text).unwrap(),
            None => fs::remove_file(&host.files.settings).unwrap(),
        }
        host.set(ACTS, false).await.unwrap();
        let expected = FIRST_SETTINGS.replace(
            "\n#POD_TEARDOWN_PODS=observe\n",
            "\n#POD_TEARDOWN_PODS=observe\nPOD_TEARDOWN_PODS=auto\n",
        );
        assert_eq!(host.settings(), expected);
    }
}

#[tokio::test]
async fn drop_in_of_the_kubelet_is_added_on_request_and_removed_by_disable() {
    let host = Host::new(&[Behavior::NotLoaded]);
    host.set(Mode::Acts { kubelet_drop_in: true }, false).await.unwrap();
    let drop_in = fs::read_to_string(&host.files.drop_in).unwrap();
    assert!(
        drop_in.contains("\nExecStartPre=-/opt/bin/pod-teardown handover --timeout "),
        "{drop_in}"
    );
    assert_eq!(host.calls("Reload"), 1);
    let done = host.set(Mode::Observes, false).await.unwrap();
    assert!(!host.files.drop_in.exists() && done.contains("is removed"), "{done}");
    assert_eq!(host.calls("Reload"), 2);
}

#[tokio::test]
async fn drop_in_with_other_content_is_neither_replaced_nor_removed() {
    let edited = DROP_IN.replace("60s", "20s");
    for content in [
        Some(&*edited),
        Some("[Service]\nExecStartPre=/bin/mine\n"),
        Some(""),
        None,
    ] {
        let host = Host::new(&[Behavior::NotLoaded]);
        fs::create_dir(host.files.drop_in.parent().unwrap()).unwrap();
        match content {
            Some(content) => fs::write(&host.files.drop_in, content).unwrap(),
            None => symlink("/dev/null", &host.files.drop_in).unwrap(),
        }
        let error = host.set(Mode::Acts { kubelet_drop_in: true }, false).await.unwrap_err();
        assert!(error.to_string().contains("other content"), "{error}");
        assert!(host.settings().contains("POD_TEARDOWN_PODS=observe"));
        let done = host.set(Mode::Observes, false).await.unwrap();
        assert!(done.contains("stays"), "{done}");
        match content {
            Some(content) => assert_eq!(fs::read_to_string(&host.files.drop_in).unwrap(), content),
            None => assert_eq!(fs::read_link(&host.files.drop_in).unwrap(), Path::new("/dev/null")),
        }
    }
}

/// A drop-in must not keep an agent active that its user disables.
#[tokio::test]
async fn failure_with_the_drop_in_enables_nothing_and_does_not_prevent_disabling() {
    let host = Host::new(&[Behavior::NotLoaded]);
    fs::write(host.files.drop_in.parent().unwrap(), "not a directory").unwrap();
    let acts = Mode::Acts { kubelet_drop_in: true };
    host.set(acts, true).await.unwrap_err();
    assert!(host.settings().contains("POD_TEARDOWN_PODS=observe"));
    assert_eq!(host.calls("RestartUnit"), 0);

    host.set(ACTS, false).await.unwrap();
    let error = host.set(Mode::Observes, true).await.unwrap_err().to_string();
    assert!(
        error.contains("POD_TEARDOWN_PODS=observe is set") && error.contains("was restarted"),
        "{error}"
    );
    assert!(host.settings().contains("POD_TEARDOWN_PODS=observe"));
    assert_eq!(host.calls("RestartUnit"), 1);
}

#[tokio::test]
async fn failed_restart_is_an_error_and_the_setting_stays() {
    let host = Host::new(&[Behavior::Fails]);
    let error = host.set(ACTS, true).await.unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("journalctl -u pod-teardown") && error.contains("is set"),
        "{error}"
    );
    assert!(host.settings().contains("POD_TEARDOWN_PODS=auto"));
}

/// The unit of the double reads another file.
#[tokio::test]
async fn unit_that_does_not_use_the_settings_is_a_configuration_error() {
    let host = Host::new(&[Behavior::Service]);
    let error = host.set(ACTS, true).await.unwrap_err();
    assert!(error.is_configuration(), "{error}");
    assert_eq!(host.calls("RestartUnit"), 0);
}

#[test]
fn flags_and_later_files_of_the_unit_override_the_setting() {
    let words = |words: &[&str]| -> Vec<String> { words.iter().map(|word| (*word).to_owned()).collect() };
    let set = |value: &str| BTreeMap::from([(VARIABLE.to_owned(), value.to_owned())]);
    for (command, variables, found) in [
        (&["p", "run"][..], set("auto"), None),
        (&["p", "run", "--pods", "auto"], set("never"), None),
        (
            &["p", "run", "--pods=never"],
            set("auto"),
            Some("--pods never in ExecStart="),
        ),
        (
            &["p", "run", "--pods", "never"],
            set("auto"),
            Some("--pods never in ExecStart="),
        ),
        (
            &["p", "run"],
            set("always"),
            Some("POD_TEARDOWN_PODS=always from a later file"),
        ),
        (
            &["p", "run"],
            BTreeMap::new(),
            Some("no EnvironmentFile= with these settings"),
        ),
    ] {
        assert_eq!(
            overriding(&words(command), &variables, "auto").as_deref(),
            found,
            "{command:?}"
        );
    }
}

#[test]
fn replaced_file_keeps_its_mode_and_a_link_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (dir.path().join("file"), dir.path().join("link"));
    fs::write(&file, "old").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    symlink(&file, &link).unwrap();
    replace(&link, "new", 0o600).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(&file).unwrap(), "new");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

/// Such as a link to `/dev/null`, whose target would become a file. Here a socket stands for the device.
#[tokio::test]
async fn device_behind_a_link_and_a_link_without_a_target_are_not_replaced() {
    let host = Host::new(&[Behavior::NotLoaded]);
    let device = host.dir.path().join("device");
    let _socket = std::os::unix::net::UnixListener::bind(&device).unwrap();
    fs::remove_file(&host.files.settings).unwrap();
    for target in [&device, &host.dir.path().join("missing")] {
        symlink(target, &host.files.settings).unwrap();
        host.set(ACTS, false).await.unwrap_err();
        replace(&host.files.settings, "new", 0o600).unwrap_err();
        assert_eq!(&fs::read_link(&host.files.settings).unwrap(), target);
        fs::remove_file(&host.files.settings).unwrap();
    }
    assert!(!fs::metadata(&device).unwrap().is_file());
}

#[tokio::test]
async fn new_settings_are_readable_by_root_only() {
    let host = Host::new(&[Behavior::NotLoaded]);
    fs::remove_file(&host.files.settings).unwrap();
    host.set(ACTS, false).await.unwrap();
    let mode = fs::metadata(&host.files.settings).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
}

#[tokio::test]
async fn file_that_cannot_be_written_is_named() {
    let host = Host::new(&[Behavior::NotLoaded]);
    let files = Files {
        settings: host.dir.path().join("none/default"),
        ..host.files.clone()
    };
    let error = set(&files, &host.systemd, ACTS, true).await.unwrap_err();
    assert!(error.to_string().contains("none/default"), "{error}");
    assert_eq!(host.calls("RestartUnit"), 0);
}
