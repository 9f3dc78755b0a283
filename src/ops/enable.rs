//! `enable` and `disable`: edit the settings of the installed service, and the drop-in of the kubelet.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown},
    path::{Path, PathBuf},
    process,
};

use crate::node::systemd::Systemd;

mod settings;

/// The unit of the agent.
const UNIT: &str = "pod-teardown.service";
/// The variable of `--pods`.
const VARIABLE: &str = "POD_TEARDOWN_PODS";
/// The drop-in of the kubelet. It names the program of the packages.
const DROP_IN: &str = include_str!("../../systemd/kubelet.service.d/10-pod-teardown.conf");
const PACKAGED_PROGRAM: &str = "/usr/bin/pod-teardown";
const RESTART: &str = "systemctl restart pod-teardown";

/// What the service shall do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// `enable`.
    Acts {
        /// Whether the kubelet gets the drop-in.
        kubelet_drop_in: bool,
    },
    /// `disable`.
    Observes,
}

/// The files that are changed.
#[derive(Debug, Clone)]
pub struct Files {
    /// The environment file of the service.
    pub settings: PathBuf,
    /// The drop-in of the kubelet.
    pub drop_in: PathBuf,
    /// The program that the drop-in calls.
    pub program: PathBuf,
}

/// Why it failed.
#[derive(Debug, thiserror::Error)]
pub enum EnableError {
    /// A file could not be read or written.
    #[error("cannot {verb} {}: {error}{}", path.display(), if error.kind() == ErrorKind::PermissionDenied { "; run this as root" } else { "" })]
    File {
        /// What was attempted.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// The file has a form that this program does not edit.
    #[error("cannot change {VARIABLE} in {}: it is part of an assignment of several lines; set {VARIABLE}={value} by hand", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// The value to set.
        value: &'static str,
    },
    /// Another setting of the unit takes precedence.
    #[error("{UNIT} still has {found}, which takes precedence: correct it with `systemctl edit pod-teardown`")]
    Overridden {
        /// The flag or variable.
        found: String,
    },
    /// systemd refused.
    #[error("cannot restart {UNIT}: {0}; `journalctl -u pod-teardown` has the log")]
    Restart(String),
}

// === impl EnableError ===

impl EnableError {
    /// Whether the configuration is wrong.
    pub fn is_configuration(&self) -> bool {
        matches!(self, Self::Overridden { .. })
    }
}

// === impl Files ===

impl Files {
    /// Those of this host.
    pub fn of_host() -> Self {
        Self {
            settings: "/etc/default/pod-teardown".into(),
            drop_in: "/etc/systemd/system/kubelet.service.d/10-pod-teardown.conf".into(),
            program: std::env::current_exe().unwrap_or_else(|_| PACKAGED_PROGRAM.into()),
        }
    }
}

// === impl Mode ===

impl Mode {
    fn value(self) -> &'static str {
        match self {
            Self::Acts { .. } => "auto",
            Self::Observes => "observe",
        }
    }
}

/// Changes the settings, and with `now` restarts the service. Returns what was done, one sentence a line.
///
/// # Errors
/// If a file cannot be changed, if the unit overrides the setting, or if the service does not start.
pub async fn set(files: &Files, systemd: &Systemd, mode: Mode, now: bool) -> Result<String, EnableError> {
    let mut done = vec![edit_settings(&files.settings, mode.value())?];
    let drop_in = match mode {
        Mode::Acts { kubelet_drop_in: true } => Some(add_drop_in(files)?),
        Mode::Acts { kubelet_drop_in: false } => None,
        Mode::Observes => remove_drop_in(&files.drop_in)?,
    };
    if let Some(drop_in) = drop_in {
        done.push(drop_in);
        if let Err(why) = systemd.reload().await {
            done.push(format!(
                "systemd did not load it ({why}): run `systemctl daemon-reload`."
            ));
        }
    }
    match systemd.service(UNIT).await {
        Ok(Some(unit)) => {
            let (variables, _) = unit.variables().map_err(|(path, error)| EnableError::File {
                verb: "read",
                path,
                error,
            })?;
            if let Some(found) = overriding(&unit.command, &variables, mode.value()) {
                return Err(EnableError::Overridden { found });
            }
        }
        Ok(None) => done.push(format!(
            "systemd knows no {UNIT}: the setting applies when it is installed."
        )),
        Err(why) => done.push(format!("systemd does not answer on D-Bus ({why}).")),
    }
    if now {
        systemd.restart_unit(UNIT).await.map_err(EnableError::Restart)?;
        done.push(format!("{UNIT} was restarted. Its role: pod-teardown status"));
    } else {
        done.push(format!("To apply it, run: {RESTART}"));
    }
    Ok(done.join("\n"))
}

/// The flag or variable of the unit that prevents the setting.
fn overriding(command: &[String], variables: &BTreeMap<String, String>, value: &str) -> Option<String> {
    let flag = command
        .iter()
        .enumerate()
        .find_map(|(at, word)| match word.strip_prefix("--pods")? {
            "" => Some(command.get(at + 1)?.as_str()),
            rest => rest.strip_prefix('='),
        });
    match (flag, variables.get(VARIABLE)) {
        (Some(found), _) => (found != value).then(|| format!("--pods {found} in ExecStart=")),
        (None, Some(found)) => (found != value).then(|| format!("{VARIABLE}={found} from a later file")),
        (None, None) => Some("no EnvironmentFile= with these settings".to_owned()),
    }
}

fn edit_settings(path: &Path, value: &'static str) -> Result<String, EnableError> {
    let failed = |verb, error| EnableError::File {
        verb,
        path: path.to_owned(),
        error,
    };
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        read => read.map_err(|error| failed("read", error))?,
    };
    let edited = settings::set(&text, VARIABLE, value).ok_or_else(|| EnableError::Form {
        path: path.to_owned(),
        value,
    })?;
    let at = path.display();
    if edited.text == text {
        return Ok(format!("{VARIABLE}={value} was already set in {at}."));
    }
    replace(path, &edited.text).map_err(|error| failed("write", error))?;
    Ok(match edited.before {
        Some(before) => format!("{VARIABLE}={value} is set in {at}. It was {before}."),
        None => format!("{VARIABLE}={value} is set in {at}."),
    })
}

fn add_drop_in(files: &Files) -> Result<String, EnableError> {
    let path = &files.drop_in;
    let text = DROP_IN.replace(PACKAGED_PROGRAM, &files.program.display().to_string());
    let directory = path.parent().unwrap_or(path);
    let written = fs::create_dir_all(directory).and_then(|()| replace(path, &text));
    written.map_err(|error| EnableError::File {
        verb: "write",
        path: path.clone(),
        error,
    })?;
    Ok(format!(
        "A starting kubelet requests a handover: {} is written.",
        path.display()
    ))
}

/// `None` if there is none.
fn remove_drop_in(path: &Path) -> Result<Option<String>, EnableError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(Some(format!("{} is removed.", path.display()))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(EnableError::File {
            verb: "remove",
            path: path.to_owned(),
            error,
        }),
    }
}

/// Replaces a file in one step, with the same owner and mode. A link stays, and its target is replaced.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let path = match fs::canonicalize(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => path.to_owned(),
        path => path?,
    };
    let before = match fs::metadata(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        before => Some(before?),
    };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", process::id()));
    let new = path.with_file_name(name);
    let written = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        if let Some(before) = &before {
            fchown(&file, Some(before.uid()), Some(before.gid()))?;
        }
        let mode = before.as_ref().map_or(0o644, |before| before.permissions().mode());
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
    };
    written().inspect_err(|_| drop(fs::remove_file(&new)))
}

#[cfg(test)]
mod tests;
