//! Every descriptor and register block against the rows of the PRM's tables (`tests/data/prm/dataplane.tsv`).

use std::collections::BTreeMap;
use std::fs;
use std::mem::{offset_of, size_of};
use std::path::PathBuf;

use ferroce_hw_regs::cqe::{Cqe64, ErrCqe};
use ferroce_hw_regs::eqe::{self, Eqe};
use ferroce_hw_regs::health::{self, HealthBuffer};
use ferroce_hw_regs::init_seg::{self, InitSegment};
use ferroce_hw_regs::wqe::{AtomicSeg, Av, CtrlSeg, DataSeg, RaddrSeg, SrqNextSeg};

/// Byte offset and bytes of each field, by structure and field.
struct Rows(BTreeMap<(String, String), (usize, usize)>);

impl Rows {
    fn read() -> Rows {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data/prm/dataplane.tsv");
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let number = |t: &str| match t.strip_prefix("0x") {
            Some(hex) => usize::from_str_radix(hex, 16).unwrap(),
            None => t.parse().unwrap_or(0),
        };
        let rows = text.lines().filter(|l| !l.starts_with('#')).map(|l| {
            let c: Vec<&str> = l.split('\t').collect();
            ((c[0].to_string(), c[1].to_string()), (number(c[2]), number(c[3])))
        });
        Rows(rows.collect())
    }

    fn get(&self, structure: &str, field: &str) -> (usize, usize) {
        let row = self.0.get(&(structure.to_string(), field.to_string()));
        *row.unwrap_or_else(|| panic!("no row {structure}.{field}"))
    }

    fn size(&self, structure: &str) -> usize {
        self.get(structure, "(size)").1
    }
}

macro_rules! check {
    ($rows:ident, $structure:literal, $T:ty, $( $row:literal => $field:ident: $bytes:literal ),* $(,)?) => {$(
        assert_eq!(
            $rows.get($structure, $row), (offset_of!($T, $field), $bytes), "{}.{}", $structure, $row
        );
    )*};
}

#[test]
fn descriptors_stand_as_the_prm_has_them() {
    let rows = Rows::read();
    assert_eq!(size_of::<Cqe64>(), rows.size("cqe64"));
    assert_eq!(size_of::<ErrCqe>(), rows.size("err_cqe"));
    assert_eq!(size_of::<Eqe>(), rows.size("eqe"));
    assert_eq!(size_of::<CtrlSeg>(), rows.size("wqe_ctrl_seg"));
    assert_eq!(size_of::<RaddrSeg>(), rows.size("wqe_raddr_seg"));
    assert_eq!(size_of::<AtomicSeg>(), rows.size("wqe_atomic_seg"));
    assert_eq!(size_of::<DataSeg>(), rows.size("wqe_data_seg"));
    assert_eq!(size_of::<Av>(), rows.size("av"));
    assert_eq!(size_of::<SrqNextSeg>(), rows.size("wqe_srq_next_seg"));
    assert_eq!(size_of::<HealthBuffer>(), rows.size("health_buffer"));

    check!(rows, "wqe_ctrl_seg", CtrlSeg,
        "opmod_idx_opcode" => opmod_idx_opcode: 4, "qpn_ds" => qpn_ds: 4, "signature" => signature: 1,
        "fm_ce_se" => fm_ce_se: 1, "imm" => imm: 4);
    check!(rows, "wqe_raddr_seg", RaddrSeg, "raddr" => raddr: 8, "rkey" => rkey: 4);
    check!(rows, "wqe_atomic_seg", AtomicSeg, "swap_add" => swap_add: 8, "compare" => compare: 8);
    check!(rows, "wqe_data_seg", DataSeg, "byte_count" => byte_count: 4, "lkey" => lkey: 4, "addr" => addr: 8);
    check!(rows, "wqe_srq_next_seg", SrqNextSeg,
        "next_wqe_index" => next_wqe_index: 2, "signature" => signature: 1);
    check!(rows, "av", Av,
        "dqp_dct" => dqp_dct: 4, "stat_rate_sl" => stat_rate_sl: 1, "fl_mlid" => fl_mlid: 1,
        "rlid" => rlid_udp_sport: 2, "rmac" => rmac: 6, "tclass" => tclass: 1, "hop_limit" => hop_limit: 1,
        "grh_gid_fl" => grh_gid_fl: 4, "rgid" => rgid: 16);
    check!(rows, "cqe64", Cqe64,
        "tls_outer_l3_tunneled" => tls_outer_l3_tunneled: 1, "wqe_id" => wqe_id: 2, "lro" => lro: 8,
        "rss_hash_result" => rss_hash_result: 4, "rss_hash_type" => rss_hash_type: 1, "ml_path" => ml_path: 1,
        "check_sum" => check_sum: 2, "slid" => slid: 2, "flags_rqpn" => flags_rqpn: 4,
        "hds_ip_ext" => hds_ip_ext: 1, "l4_l3_hdr_type" => l4_l3_hdr_type: 1, "vlan_info" => vlan_info: 2,
        "srqn" => srqn_uidx: 4, "immediate" => imm_inval_pkey: 4, "byte_cnt" => byte_cnt: 4,
        "timestamp_h" => timestamp: 4, "sop_drop_qpn" => sop_drop_qpn: 4, "wqe_counter" => wqe_counter: 2,
        "signature" => signature: 1, "op_own" => op_own: 1);
    check!(rows, "err_cqe", ErrCqe,
        "srqn" => srqn_uidx: 4, "vendor_err_synd" => vendor_err_synd: 1, "syndrome" => syndrome: 1,
        "s_wqe_opcode_qpn" => s_wqe_opcode_qpn: 4, "wqe_counter" => wqe_counter: 2,
        "signature" => signature: 1, "op_own" => op_own: 1);
}

#[test]
fn events_stand_as_the_prm_has_them() {
    let rows = Rows::read();
    check!(rows, "eqe", Eqe,
        "type" => ty: 1, "sub_type" => sub_type: 1, "data" => data: 28, "signature" => signature: 1,
        "owner" => owner: 1);
    check!(rows, "eqe_comp", eqe::Completion, "cqn" => cqn: 4);
    check!(rows, "eqe_cmd", eqe::CommandCompletion, "vector" => vector: 4);
    check!(rows, "eqe_page_req", eqe::PageRequest,
        "ec_function" => flags: 2, "func_id" => func_id: 2, "num_pages" => num_pages: 4);
    check!(rows, "eqe_qp_srq", eqe::QpSrq, "type" => ty: 1, "qp_srq_n" => qp_srq_n: 4);
    check!(rows, "eqe_cq_err", eqe::CqError, "cqn" => cqn: 4, "syndrome" => syndrome: 1);
    check!(rows, "eqe_port_state", eqe::PortState, "port" => port: 1);
}

#[test]
fn registers_stand_as_the_prm_has_them() {
    let rows = Rows::read();
    check!(rows, "init_seg", InitSegment,
        "fw_rev" => fw_rev: 4, "cmdif_rev_fw_sub" => cmdif_rev_fw_sub: 4, "cmdq_addr_h" => cmdq_addr_h: 4,
        "cmdq_addr_l_sz" => cmdq_addr_l_sz: 4, "cmd_dbell" => cmd_dbell: 4, "initializing" => initializing: 4,
        "health" => health: 64, "cmd_exec_to" => cmd_exec_to: 4, "cmd_q_init_to" => cmd_q_init_to: 4,
        "internal_timer_h" => internal_timer_h: 4, "internal_timer_l" => internal_timer_l: 4,
        "health_counter" => health_counter: 4);
    check!(rows, "health_buffer", HealthBuffer,
        "assert_var" => assert_var: 24, "assert_exit_ptr" => assert_exit_ptr: 4,
        "assert_callra" => assert_callra: 4, "time" => time: 4, "fw_ver" => fw_ver: 4, "hw_id" => hw_id: 4,
        "rfr_severity" => rfr_severity: 1);
    assert_eq!(rows.size("init_seg"), init_seg::BYTES);
    for (name, offset) in [
        ("real_time_h", init_seg::offset::REAL_TIME_H),
        ("real_time_l", init_seg::offset::REAL_TIME_L),
        ("ieee1588_clk", init_seg::offset::IEEE1588_CLK),
        ("ieee1588_clk_type", init_seg::offset::IEEE1588_CLK_TYPE),
        ("clr_intx", init_seg::offset::CLR_INTX),
    ] {
        assert_eq!(rows.get("init_seg", name).0 as u64, offset, "{name}");
    }
    let synd = rows.get("health_buffer", "synd");
    assert_eq!(
        (init_seg::offset::HEALTH + synd.0 as u64, synd.1),
        (health::offset::IRISC_SYND + 1, 1)
    );
}
