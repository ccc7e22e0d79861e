use zerocopy::FromBytes;

use super::*;
use crate::engine::congestion::CongestionCounters;
use crate::engine::traffic::{Count, MacControl};

const RP: u8 = 1;
const NP: u8 = 2;

fn modify_np(bench: &mut Bench, select: u32, fill: impl FnOnce(&mut CongControlRRoceEcnNp)) -> Reply {
    let mut np = CongControlRRoceEcnNp::zeroed();
    fill(&mut np);
    let mut input = input_of(Opcode::MODIFY_CONG_PARAMS, 0, |i: &mut ModifyCongParamsIn| {
        i.set_cong_protocol(NP).unwrap();
        i.set_field_select(select);
    })
    .as_bytes()
    .to_vec();
    input[0x20..].copy_from_slice(np.as_bytes());
    bench.exec(&input, 16)
}

fn np(bench: &mut Bench) -> CongControlRRoceEcnNp {
    let input = input_of(Opcode::QUERY_CONG_PARAMS, 0, |i: &mut QueryCongParamsIn| {
        i.set_cong_protocol(NP).unwrap();
    });
    let out = bench.exec(input.as_bytes(), QueryCongParamsOut::BYTES).ok();
    CongControlRRoceEcnNp::read_from_bytes(&out[0x10..]).unwrap()
}

#[test]
fn parameters_of_cnps_are_told_and_set_field_by_field() {
    let mut bench = Bench::initialized(Profile::connectx4());
    let default = np(&mut bench);
    assert_eq!((default.cnp_dscp(), default.cnp_802p_prio()), (48, 6));
    assert_eq!(
        (default.min_time_between_cnps(), default.cnp_prio_mode()),
        (4, false)
    );
    modify_np(&mut bench, 1 << 2 | 1 << 3, |np| {
        np.set_min_time_between_cnps(50);
        np.set_cnp_dscp(46).unwrap();
        np.set_cnp_802p_prio(1).unwrap();
    })
    .ok();
    let set = np(&mut bench);
    assert_eq!(
        (set.cnp_dscp(), set.cnp_802p_prio(), set.min_time_between_cnps()),
        (46, 6, 50)
    );
    assert_eq!(bench.plane.congestion.cnp_interval.as_micros(), 50);
    assert_eq!(
        modify_np(&mut bench, 1 << 9, |_| {}).refused().0,
        CommandStatus::BAD_PARAM
    );
    // The reaction point's are kept.
    let mut input = input_of(Opcode::MODIFY_CONG_PARAMS, 0, |i: &mut ModifyCongParamsIn| {
        i.set_cong_protocol(RP).unwrap();
        i.set_field_select(1 << 5);
    })
    .as_bytes()
    .to_vec();
    let mut rp = CongControlRRoceEcnRp::zeroed();
    rp.set_rpg_threshold(7);
    rp.set_rpg_gd(9);
    input[0x20..].copy_from_slice(rp.as_bytes());
    bench.exec(&input, 16).ok();
    let input = input_of(Opcode::QUERY_CONG_PARAMS, 0, |i: &mut QueryCongParamsIn| {
        i.set_cong_protocol(RP).unwrap();
    });
    let out = bench.exec(input.as_bytes(), QueryCongParamsOut::BYTES).ok();
    let rp = CongControlRRoceEcnRp::read_from_bytes(&out[0x10..]).unwrap();
    assert_eq!((rp.rpg_threshold(), rp.rpg_gd()), (7, 0));
}

#[test]
fn it_is_on_or_off_by_priority() {
    let mut bench = Bench::initialized(Profile::connectx4());
    let mut set = |protocol, priority, on| {
        bench
            .command(Opcode::MODIFY_CONG_STATUS, |i: &mut ModifyCongStatusIn| {
                i.set_cong_protocol(protocol).unwrap();
                i.set_priority(priority).unwrap();
                i.set_enable(on);
            })
            .refused()
            .0
    };
    assert_eq!(set(NP, 3, false), CommandStatus::OK);
    assert_eq!(set(RP, 5, false), CommandStatus::OK);
    assert_eq!(set(NP, 8, false), CommandStatus::EXCEED_LIM);
    assert_eq!(set(3, 0, false), CommandStatus::BAD_PARAM);
    assert_eq!(
        (bench.plane.congestion.notify, bench.plane.congestion.react),
        (0xf7, 0xdf)
    );
    let mut on = |protocol, priority| {
        let input = input_of(Opcode::QUERY_CONG_STATUS, 0, |i: &mut QueryCongStatusIn| {
            i.set_cong_protocol(protocol).unwrap();
            i.set_priority(priority).unwrap();
        });
        bench.exec(input.as_bytes(), 16).ok()[0xc] >> 7
    };
    assert_eq!([on(NP, 3), on(NP, 4), on(RP, 5), on(RP, 3)], [0, 1, 0, 1]);
}

#[test]
fn statistics_are_told_and_cleared() {
    let mut bench = Bench::initialized(Profile::connectx4());
    bench.plane.congestion.counters = CongestionCounters {
        marked: 1 << 32 | 5,
        cnps_sent: 4,
        cnps_handled: 3,
        cnps_ignored: 2,
    };
    let query = |bench: &mut Bench, clear| {
        let input = input_of(
            Opcode::QUERY_CONG_STATISTICS,
            0,
            |i: &mut QueryCongStatisticsIn| {
                i.set_clear(clear);
            },
        );
        let out = bench.exec(input.as_bytes(), QueryCongStatisticsOut::BYTES).ok();
        QueryCongStatisticsOut::read_from_bytes(&out[..]).unwrap()
    };
    let out = query(&mut bench, true);
    let marked = (
        out.np_ecn_marked_roce_packets_high(),
        out.np_ecn_marked_roce_packets_low(),
    );
    assert_eq!((marked, out.np_cnp_sent_low()), ((1, 5), 4));
    assert_eq!((out.rp_cnp_handled_low(), out.rp_cnp_ignored_low()), (3, 2));
    bench.plane.congestion.counters.cnps_sent = 6;
    let out = query(&mut bench, false);
    assert_eq!(
        (out.np_ecn_marked_roce_packets_low(), out.np_cnp_sent_low()),
        (0, 2)
    );
}

#[test]
fn a_minimal_nic_has_no_congestion_control_to_ask_about() {
    let mut bench = Bench::initialized(Profile::minimal());
    let statistics = bench.plain(Opcode::QUERY_CONG_STATISTICS, 0);
    assert_ne!(statistics.refused().0, CommandStatus::OK);
    assert_ne!(
        modify_np(&mut bench, 1 << 2, |_| {}).refused().0,
        CommandStatus::OK
    );
}

#[test]
fn port_counters_come_out_of_their_register() {
    let mut bench = Bench::initialized(Profile::connectx4());
    bench.plane.traffic.received.all.unicast = Count {
        frames: 9,
        octets: 900,
    };
    bench.plane.traffic.control = MacControl {
        received: 3,
        pause: 2,
        ..MacControl::default()
    };
    let mut input = input_of(Opcode::ACCESS_REG, 1, |i: &mut AccessRegisterIn| {
        i.set_register_id(0x5008);
    })
    .as_bytes()
    .to_vec();
    let mut register = PpcntReg::zeroed();
    register.set_local_port(1);
    input.extend_from_slice(register.as_bytes());
    let out = bench.exec(&input, 0x110).ok();
    let counter = |at: usize| u64::from_be_bytes(*out[0x18 + at..].first_chunk().unwrap());
    // Frames and octets received; MAC control frames and pauses.
    assert_eq!(
        [counter(0x08), counter(0x28), counter(0x78), counter(0x88)],
        [9, 900, 3, 2]
    );
}

#[test]
fn a_nic_that_lists_its_registers_lists_the_port_s() {
    let mut bench = Bench::initialized(Profile::connectx5());
    let mut input = input_of(Opcode::ACCESS_REG, 1, |i: &mut AccessRegisterIn| {
        i.set_register_id(0x507f);
    })
    .as_bytes()
    .to_vec();
    input.resize(0x60, 0);
    let out = bench.exec(&input, 0x60).ok();
    let bits = u128::from_be_bytes(*out[0x18..].first_chunk().unwrap());
    // PMTU, PTYS, PAOS, PFCC, PPCNT; PPCNT is bit 0x77 of the mask, counted from its start.
    assert_eq!(bits, 1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 8);
    assert_eq!(bits >> (127 - 0x77) & 1, 1);
}

#[test]
fn groups_are_attached_where_the_nic_has_them() {
    let mut bench = Bench::initialized(Profile::connectx4());
    let attach = bench.command(Opcode::ATTACH_TO_MCG, |i: &mut AttachToMcgIn| {
        i.set_qpn(0x123456).unwrap();
        i.set_multicast_gid(0, 0xff);
    });
    assert_eq!(attach.refused().0, CommandStatus::BAD_RESOURCE);
}
