use std::fs;

use proptest::prelude::*;

use super::*;

const POD_COPY: &str = r#"{"attachmentID":"csi-ab","driverName":"csi.example.com","nodeName":"node-1","specVolID":"pv-1","volumeHandle":"vol/../0123","volumeLifecycleMode":"Persistent","seLinuxMountContext":"x"}"#;

fn valid(json: &[u8]) -> VolumeData {
    match parse(json) {
        VolumeDataFile::Read(data) => data,
        other => panic!("{other:?}"),
    }
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[test]
fn pod_file_has_all_fields_and_a_global_one_driver_and_handle() {
    let all = VolumeData {
        driver: text("csi.example.com"),
        handle: text("vol/../0123"),
        lifecycle: Lifecycle::Persistent,
    };
    assert_eq!(valid(POD_COPY.as_bytes()), all);
    let global = valid(br#"{"driverName":"csi.example.com","volumeHandle":"v"}"#);
    assert_eq!((global.driver, global.handle), (text("csi.example.com"), text("v")));
    let inline = valid(br#"{"driverName":"d","volumeHandle":"","volumeLifecycleMode":"Ephemeral"}"#);
    assert_eq!((inline.lifecycle, inline.handle), (Lifecycle::Ephemeral, None));
}

#[test]
fn unknown_keys_are_ignored() {
    let newer = POD_COPY.replace('{', r#"{"newKey":{"a":[1]},"#);
    assert_eq!(valid(newer.as_bytes()), valid(POD_COPY.as_bytes()));
}

#[test]
fn file_that_no_kubelet_has_written_completely_is_invalid_with_the_reason() {
    let temp = tempfile::tempdir().unwrap();
    let dir = Dir::open(&temp.path().canonicalize().unwrap()).unwrap().unwrap();
    let path = temp.path().join(FILE);
    assert_eq!(read(&dir), Ok(VolumeDataFile::Missing));
    let assert_invalid = |content: &[u8], expected: &str| {
        fs::write(&path, content).unwrap();
        match read(&dir) {
            Ok(VolumeDataFile::Invalid(why)) => assert!(why.contains(expected), "{why}"),
            other => panic!("{other:?}"),
        }
    };
    for empty in [&b""[..], b"\n", &[0; 4096]] {
        assert_invalid(empty, "it is empty");
    }
    for cut in 1..POD_COPY.len() {
        assert_invalid(&POD_COPY.as_bytes()[..cut], "it is cut off");
    }
    for garbage in [
        &b"x"[..],
        b"[]x",
        b"7",
        b"null",
        b"{\"driverName\":7}",
        b"{\"volumeHandle\":{}}",
        b"{}{}",
        b"{\"driverName\":\"\xff\"}",
    ] {
        assert_invalid(garbage, "not what a kubelet writes");
    }
    assert_invalid(&vec![b' '; 1 << 20], "larger than");
    fs::write(&path, POD_COPY).unwrap();
    assert!(matches!(read(&dir), Ok(VolumeDataFile::Read(_))));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(read(&dir), Ok(VolumeDataFile::Invalid(_))));
}

#[test]
fn driver_name_with_a_path_is_refused() {
    for name in ["..", ".", "a/b", "../../etc", "a\0b", "a b", "ü", &"x".repeat(64)] {
        let json = serde_json::json!({"driverName": name, "volumeHandle": "v"}).to_string();
        let refused = format!("{name:?} is not the name of a driver");
        assert_eq!(parse(json.as_bytes()), VolumeDataFile::Invalid(refused));
        assert_eq!(staging_dir(name, "v"), None);
    }
}

// The digests were computed with coreutils' sha256sum.
#[test]
fn names_equal_the_kubelets() {
    let staged =
        "plugins/kubernetes.io/csi/csi.example.com/f1dcc41f8f47bcb49d9e1cd26bd3aef8ebdac1e4cbe319cc4b4ac26bffe8f1e9";
    assert_eq!(staging_dir("csi.example.com", "vol-0123").unwrap(), Path::new(staged));
    assert_eq!(
        unique_name("csi.example.com", "vol-0123"),
        "kubernetes.io/csi/csi.example.com^vol-0123"
    );
}

proptest! {
    #[test]
    fn no_content_panics_and_no_driver_name_is_a_path(content in proptest::collection::vec(any::<u8>(), 0..64), name in ".*") {
        let _torn = parse(&content);
        let json = serde_json::json!({"driverName": name, "volumeHandle": "v"}).to_string();
        if let VolumeDataFile::Read(VolumeData { driver: Some(driver), .. }) = parse(json.as_bytes()) {
            prop_assert_eq!(staging_dir(&driver, "v").unwrap().components().count(), 5);
        }
    }
}
