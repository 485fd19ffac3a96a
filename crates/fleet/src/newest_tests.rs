use super::*;
use crate::Class;

fn program(build: &str) -> Program {
    Program { build: Build::parse(build).unwrap(), class: Class::default() }
}

/// A head with an aggregate that has been in force since this time.
fn head(since: u64) -> Head {
    Head { current: Some(Digest([1; 32])), since: Some(since), ..Head::default() }
}

fn next(present: Option<&Newest>, build: &str, head: &Head) -> Option<Newest> {
    Newest::next(present, &program(build), head, &Policy::default(), 1000)
}

#[test]
fn builds_of_one_program_have_one_name() {
    let name = Name::of("/usr/sbin/mariadbd").unwrap();
    assert_eq!(Name::of("/opt/mariadb-12/bin/mariadbd"), Some(name));
    assert_ne!(Name::of("/usr/sbin/mysqld"), Some(name));
    assert_eq!((Name::of("/usr/sbin/"), Name::of("")), (None, None));
    let mut profile = Profile { exes: ["/usr/sbin/mariadbd".to_owned()].into(), ..Profile::default() };
    for _ in 0..2 {
        Name::put_in(&mut profile);
        assert_eq!(Name::all_in(&profile).collect::<Vec<_>>(), [name]);
        assert!(!profile.to_string().contains("mariadbd"));
    }
}

#[test]
fn the_newest_build_in_force_is_recorded_whoever_comes_last() {
    // Neither a build without an aggregate nor one that is still in a wave is recorded.
    assert_eq!(next(None, "0a", &Head::default()), None);
    let offered = Head::default().offering(Digest([2; 32]), Digest([3; 32]), 9, None, 10);
    assert_eq!(next(None, "0a", &offered), None);
    let a = next(None, "0a", &head(10)).unwrap();
    assert_eq!((a.build(), a.since, a.written), (Some(program("0a").build), 10, 1000));
    assert_eq!(next(Some(&a), "0a", &head(10)), None, "it is right already");
    let b = next(Some(&a), "0b", &head(20)).unwrap();
    assert_eq!((b.build(), b.written), (Some(program("0b").build), 1001), "never older than before");
    assert_eq!(next(Some(&b), "0a", &head(10)), None);
    // If a late merger has put the older build back, the next step puts it right.
    let late = Newest { written: 1002, ..a };
    assert_eq!(next(Some(&late), "0b", &head(20)).unwrap().build(), b.build());
    // Of two at the same second all mergers choose the same.
    let c = next(Some(&b), "0c", &head(20)).unwrap();
    assert_eq!(next(Some(&c), "0b", &head(20)), None);
}

#[test]
fn a_build_that_loses_its_aggregate_makes_room_for_an_older_one() {
    let b = next(None, "0b", &head(20)).unwrap();
    let without = Head { current: None, ..head(20) };
    assert_eq!(next(Some(&b), "0a", &without), None, "another build decides nothing about it");
    let gone = next(Some(&b), "0b", &without).unwrap();
    assert_eq!((gone.build(), gone.written), (None, 1001));
    assert_eq!(next(Some(&gone), "0b", &without), None);
    assert_eq!(next(Some(&gone), "0a", &head(10)).unwrap().build(), Some(program("0a").build));
    // The same if the operator denies the build or its aggregate.
    for denied in ["0b".to_owned(), Digest([1; 32]).to_string()] {
        let policy = Policy { deny: vec![denied], ..Policy::default() };
        let next = Newest::next(Some(&b), &program("0b"), &head(20), &policy, 1000);
        assert_eq!(next.unwrap().build(), None);
    }
}

#[test]
fn records_are_read_as_they_are_written() {
    let a = next(None, "0a", &head(10)).unwrap();
    assert_eq!(Newest::parse(a.text().as_bytes(), 1000), Ok(a.clone()));
    assert_eq!(Newest::parse(a.text().as_bytes(), 1001), Err(Refused::Older { found: 1000, seen: 1001 }));
    let newer = a.text().replace("\"version\": 1", "\"version\": 2");
    assert_eq!(Newest::parse(newer.as_bytes(), 0), Err(Refused::Newer(2)));
    let wrong = a.text().replace("0a", "../x");
    assert!(matches!(Newest::parse(wrong.as_bytes(), 0), Err(Refused::Name(..))));
    assert!(matches!(Newest::parse(b"{\"version\": 1}", 0), Err(Refused::Content(_))));
}

#[test]
fn an_aggregate_of_another_program_is_refused() {
    let text = |exe: &str| {
        format!(
            "whet-profile 2\n{exe}runs 1\nmodule 0a\nfunction 0x10 7 counted entered 1 samples 1 size 0x4 none\n+0 +0 1\nend\n"
        )
    };
    let name = Name::of("/bin/x").unwrap();
    let read = |text: &str| {
        read_former(text.as_bytes(), &Digest::of(text.as_bytes()), &program("0a").build, name).map(|_| ())
    };
    assert_eq!(read(&text(&format!("exe {name}\n"))), Ok(()));
    for other in [String::new(), format!("exe {}\n", Name::of("y").unwrap()), "exe /bin/x\n".to_owned()] {
        assert_eq!(read(&text(&other)), Err(Refused::OtherProgram), "{other}");
    }
}
