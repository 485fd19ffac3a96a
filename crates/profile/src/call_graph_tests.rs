use super::*;

/// `main` calls `parse` 10 times and `work` 90 times; `parse` calls `work` 10 times; `work` calls itself and a
/// function of a library. An indirect call of `work` reaches `main`'s helper in half of its observations.
const TEXT: &str = "\
whet-profile 2
exe /usr/bin/a
module aa a
function 0x1000 1 counted entered 1 samples 3 size 0x100 global main
+0 +0 100
call +2 0x2000 10
call +8 0x3000 90
function 0x2000 2 counted entered 10 samples 10 size 0x100 none
+0 +20 10
call +6 0x3000 10
function 0x3000 3 counted entered 300 samples 100 size 0x100 local work
+0 +30 300
call +10 0x3000 200
call +20 0x1000@bb 300
leads +28 of 4 0x4000 2
function 0x4000 4 counted entered 200 samples 40 size 0x100 local helper
+0 +0 200
function 0x5000 5 inferred entered 9 samples 7 size 0x100 local guessed
+0 +0 60000
call +2 0x3000 60000
module bb libb.so
function 0x1000 6 counted entered 300 samples 50 size 0x100 global b
+0 +0 300
end
";

fn named(graph: &CallGraph<'_>, stacks: &[EstimatedStack]) -> Vec<String> {
    let name = |&i: &usize| {
        let n = &graph.nodes()[i];
        if n.function.name.is_empty() { n.key.at.to_string() } else { n.function.name.clone() }
    };
    stacks.iter().map(|(s, n)| format!("{} {n}", s.iter().map(name).collect::<Vec<_>>().join(";"))).collect()
}

#[test]
fn samples_are_divided_by_exact_calls() {
    let profile: Profile = TEXT.parse().unwrap();
    let graph = CallGraph::of(&profile);
    let samples: Vec<u64> = graph.nodes().iter().map(|n| n.function.samples).collect();
    let stacks = named(&graph, &graph.stacks(&samples));
    assert_eq!(
        stacks,
        [
            "main 3",
            "main;0x2000 10",
            "main;0x2000;work 10",
            // 150 of 200 entries are known to come from `work`.
            "main;0x2000;work;helper 3",
            "main;0x2000;work;b 5",
            "main;work 90",
            "main;work;helper 27",
            "main;work;b 45",
            "helper 10",
            // Its counts have another unit.
            "guessed 7",
        ]
    );
    assert_eq!(graph.without_callers(), 1);
}

#[test]
fn each_function_keeps_its_samples() {
    arbtest::arbtest(|u| {
        let mut profile: Profile = TEXT.parse().unwrap();
        for f in profile.modules.values_mut().flat_map(|m| m.functions.values_mut()) {
            f.samples = u.int_in_range(0..=2_000_000)?;
            f.entered = u.arbitrary()?;
            f.calls.values_mut().try_for_each(|n| u.arbitrary().map(|v| *n = v))?;
            for _ in 0..u.int_in_range(0..=3)? {
                let at = Svma(u.int_in_range(1..=5)? * 0x1000);
                f.calls.insert((u.arbitrary()?, Place { module: None, at }), u.arbitrary()?);
            }
        }
        let graph = CallGraph::of(&profile);
        let samples: Vec<u64> = graph.nodes().iter().map(|n| n.function.samples).collect();
        let mut found = vec![0; samples.len()];
        let stacks = graph.stacks(&samples);
        assert!(stacks.len() <= 20_000 + samples.len());
        for (stack, n) in stacks {
            assert!(n > 0 && stack.len() <= DEEPEST);
            assert_eq!(stack.iter().collect::<std::collections::BTreeSet<_>>().len(), stack.len());
            found[*stack.last().unwrap()] += n;
        }
        assert_eq!(found, samples);
        Ok(())
    })
    .budget_ms(500);
}

#[test]
fn whole_numbers_add_up() {
    assert_eq!(divide(10, &[1, 1, 1]), [4, 3, 3]);
    assert_eq!(divide(1, &[10, 90]), [0, 1]);
    assert_eq!(
        divide(u64::MAX, &[u64::MAX, 1]).iter().map(|&n| u128::from(n)).sum::<u128>(),
        u128::from(u64::MAX)
    );
    assert_eq!(divide(0, &[3, 4]), [0, 0]);
}

/// Nine layers of four functions, each called by all of the layer before: 262,144 stacks lead to the last layer.
#[test]
fn the_number_of_stacks_is_limited() {
    let mut text = String::from("whet-profile 2\nexe /usr/bin/a\nmodule aa a\n");
    for i in 0..36 {
        let (at, next) = (0x1000 * (i + 1), (i / 4 + 1) * 4);
        text += &format!("function {at:#x} 1 counted entered 400 samples 0 size 0x100 none\n+0 +40 100\n");
        for callee in (next..next + 4).filter(|c| *c < 36) {
            text += &format!("call +{:x} {:#x} 100\n", 8 * (callee - next), 0x1000 * (callee + 1));
        }
    }
    let profile: Profile = (text + "end\n").parse().unwrap();
    let graph = CallGraph::of(&profile);
    let samples: Vec<u64> = (0..36).map(|i| if i < 32 { 0 } else { 1 << 40 }).collect();
    let stacks = graph.stacks(&samples);
    assert!(stacks.len() > 4 && stacks.len() <= 20_000 + 36, "{} stacks", stacks.len());
    assert_eq!(stacks.iter().map(|s| s.1).sum::<u64>(), 4 << 40);
    // A sum of samples beyond 64 bits does not make the parts smaller.
    let stacks = graph.stacks(&[u64::MAX; 36]);
    assert!(stacks.len() > 36 && stacks.len() <= 20_000 + 36, "{} stacks", stacks.len());
}
