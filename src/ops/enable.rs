//! `enable` and `disable`: edit the settings of the installed service, and the drop-in of the kubelet.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown},
    path::{Path, PathBuf},
    process,
};

use crate::node::systemd::{Systemd, environment_file};

mod settings;

/// The unit of the agent.
const UNIT: &str = "pod-teardown.service";
/// The variable of `--pods`.
const VARIABLE: &str = "POD_TEARDOWN_PODS";
/// The drop-in of the kubelet. It names the program of the packages.
const DROP_IN: &str = include_str!("../../systemd/kubelet.service.d/10-pod-teardown.conf");
/// The settings of a first installation: a comment for each.
const FIRST_SETTINGS: &str = include_str!("../../systemd/pod-teardown.default");
const PACKAGED_PROGRAM: &str = "/usr/bin/pod-teardown";
/// Mode of new settings. Users add secrets to them, such as a token.
const SETTINGS_MODE: u32 = 0o640;
/// Mode of a new drop-in.
const DROP_IN_MODE: u32 = 0o644;
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
    /// Only the drop-in of the kubelet stays.
    #[error("{error}\nEverything else is done:\n{done}")]
    DropInStays {
        /// What was done, one sentence a line.
        done: String,
        /// Why the drop-in stays.
        error: Box<EnableError>,
    },
    /// The kubelet has another drop-in of that name.
    #[error(
        "cannot write {}: it has other content than the drop-in of this command; move it away, or let it call `pod-teardown handover`",
        path.display()
    )]
    OtherDropIn {
        /// The file.
        path: PathBuf,
    },
    /// Another setting of the unit takes precedence.
    #[error("{UNIT} still has {found}, which takes precedence: correct it with `systemctl edit pod-teardown`")]
    Overridden {
        /// The flag or variable.
        found: String,
    },
    /// systemd refused.
    #[error(
        "{VARIABLE}={value} is set, and applies at the next start: cannot restart {UNIT}: {why}; `journalctl -u pod-teardown` has the log"
    )]
    Restart {
        /// The value that was set.
        value: &'static str,
        /// The cause.
        why: String,
    },
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
            settings: environment_file::OF_SERVICE.into(),
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
    let mut done = Vec::new();
    let mut has_changed_drop_in = false;
    let mut failure = None;
    match mode {
        // The setting is last: if the drop-in cannot be added, nothing is enabled.
        Mode::Acts { kubelet_drop_in } => {
            if kubelet_drop_in {
                done.push(add_drop_in(files)?);
                has_changed_drop_in = true;
            }
            done.push(edit_settings(&files.settings, mode.value())?);
        }
        // The setting is first: a drop-in that cannot be removed does not prevent the restart.
        Mode::Observes => {
            done.push(edit_settings(&files.settings, mode.value())?);
            match remove_drop_in(files) {
                Ok((changed, line)) => {
                    has_changed_drop_in = changed;
                    done.extend(line);
                }
                Err(error) => failure = Some(error),
            }
        }
    }
    if has_changed_drop_in && let Err(why) = systemd.reload().await {
        done.push(format!(
            "systemd did not load it ({why}): run `systemctl daemon-reload`."
        ));
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
        let restarted = systemd.restart_unit(UNIT).await;
        restarted.map_err(|why| EnableError::Restart {
            value: mode.value(),
            why,
        })?;
        done.push(format!(
            "{UNIT} was restarted. To see its role, run: pod-teardown status"
        ));
    } else {
        done.push(format!("To apply it, run: {RESTART}"));
    }
    let done = done.join("\n");
    match failure {
        None => Ok(done),
        Some(error) => Err(EnableError::DropInStays {
            done,
            error: Box::new(error),
        }),
    }
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
    let text = read_regular(path).map_err(|error| failed("read", error))?;
    // A power cut may have emptied it.
    let text = text.filter(|text| !text.is_empty());
    let text = text.unwrap_or_else(|| FIRST_SETTINGS.to_owned());
    let edited = settings::set(&text, VARIABLE, value).ok_or_else(|| EnableError::Form {
        path: path.to_owned(),
        value,
    })?;
    let at = path.display();
    if edited.text == text {
        return Ok(format!("{VARIABLE}={value} was already set in {at}."));
    }
    replace(path, &edited.text, SETTINGS_MODE).map_err(|error| failed("write", error))?;
    Ok(match edited.before {
        Some(before) => format!("{VARIABLE}={value} is set in {at}. It was {before}."),
        None => format!("{VARIABLE}={value} is set in {at}."),
    })
}

/// What is at the path of the drop-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DropIn {
    Missing,
    /// With the directives that [`add_drop_in`] writes, for any path of the program.
    Ours,
    /// With other directives, or no regular file, such as the link to `/dev/null` that masks it.
    Other,
}

fn inspect_drop_in(files: &Files) -> Result<DropIn, EnableError> {
    let path = &files.drop_in;
    let failed = |error| EnableError::File {
        verb: "read",
        path: path.clone(),
        error,
    };
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(DropIn::Missing),
        metadata => metadata.map_err(failed)?,
    };
    if !metadata.is_file() {
        return Ok(DropIn::Other);
    }
    let text = fs::read(path).map_err(failed)?;
    let is_ours = str::from_utf8(&text).is_ok_and(|text| directives(text) == directives(DROP_IN));
    Ok(if is_ours { DropIn::Ours } else { DropIn::Other })
}

/// The lines that systemd reads, without the path of the program.
fn directives(text: &str) -> Vec<(&str, &str)> {
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with(['#', ';']));
    lines
        .map(|line| match line.strip_prefix("ExecStartPre=-/") {
            Some(command) => (
                "ExecStartPre=-/",
                command.split_once(' ').map_or("", |(_, arguments)| arguments),
            ),
            None => (line, ""),
        })
        .collect()
}

fn add_drop_in(files: &Files) -> Result<String, EnableError> {
    let path = &files.drop_in;
    if inspect_drop_in(files)? == DropIn::Other {
        return Err(EnableError::OtherDropIn { path: path.clone() });
    }
    let text = DROP_IN.replace(PACKAGED_PROGRAM, &files.program.display().to_string());
    let directory = path.parent().unwrap_or(path);
    let written = fs::create_dir_all(directory).and_then(|()| replace(path, &text, DROP_IN_MODE));
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

/// Whether it was removed, and the line to print.
fn remove_drop_in(files: &Files) -> Result<(bool, Option<String>), EnableError> {
    let path = &files.drop_in;
    match inspect_drop_in(files)? {
        DropIn::Missing => Ok((false, None)),
        DropIn::Other => Ok((
            false,
            Some(format!(
                "{} stays: it has other content than the drop-in of this command.",
                path.display()
            )),
        )),
        DropIn::Ours => {
            fs::remove_file(path).map_err(|error| EnableError::File {
                verb: "remove",
                path: path.clone(),
                error,
            })?;
            Ok((true, Some(format!("{} is removed.", path.display()))))
        }
    }
}

/// The text of a file, or of the target of a link. `None` if the file does not exist.
///
/// # Errors
/// If it is no regular file, such as a device, or if it is a link without a target.
fn read_regular(path: &Path) -> io::Result<Option<String>> {
    let metadata = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound && !path.is_symlink() => return Ok(None),
        metadata => metadata?,
    };
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    fs::read_to_string(path).map(Some)
}

/// Replaces a file in one step, with the same owner and mode; a new one has `new_mode`. A link stays, and its target is
/// replaced.
fn replace(path: &Path, text: &str, new_mode: u32) -> io::Result<()> {
    let (path, before) = match fs::canonicalize(path) {
        Err(error) if error.kind() == ErrorKind::NotFound && !path.is_symlink() => (path.to_owned(), None),
        target => {
            let target = target?;
            let before = fs::metadata(&target)?;
            (target, Some(before))
        }
    };
    if before.as_ref().is_some_and(|before| !before.is_file()) {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", process::id()));
    let new = path.with_file_name(name);
    let written = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        if let Some(before) = &before {
            fchown(&file, Some(before.uid()), Some(before.gid()))?;
        }
        let mode = before.as_ref().map_or(new_mode, |before| before.permissions().mode());
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
    };
    written().inspect_err(|_| drop(fs::remove_file(&new)))
}

#[cfg(test)]
mod tests;
