"""The programs and their bugs: where each was reported, what is wrong, and which checks would name it rightly."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

# Derived: from the number of classes, or from the definition of the metric where it is a share of variance.
GUESSES = {
    "blobs_segment": 0.0,
    "char_gpt": 0.2,
    "deep_sets": 0.0,
    "diffusion_moons": 0.0,
    "digits_cnn": 0.1,
    "distill_digits": 0.1,
    "dqn_grid": 0.0,
    "finetune_digits": 0.2,
    "forecast_gru": 0.0,
    "form_tagger": 0.25,
    "friedman_mlp": 0.0,
    "gan_ring": 0.0,
    "gcn_groups": 1 / 3,
    "items_factors": 0.5,
    "locate_square": 0.25,
    "maml_sine": 0.0,
    "marked_word": 0.1,
    "reinforce_corridor": 0.0,
    "reviews_lstm": 0.5,
    "signals_resnet": 0.25,
    "two_towers": 1 / 64,
    "vae_digits": 0.0,
    "wine_gate": 0.4,
}
"""The held-out metric of each program if it only guesses."""


LATER_CHECKS = {
    "friedman_mlp/relu_output": "unreachable-targets",
    "wine_gate/gate_zero_twice": "stuck-zeros",
    "distill_digits/teacher_twice": "constant-loss-term",
    "reviews_lstm/dropout_without_flag": "lasting-dropout",
}
"""Checks that were made after the first answers, because of these bugs, and tell their cause."""


def is_held_out(program: str) -> bool:
    """Whole programs are held out, by one bit of a hash of their names; the bit makes the halves nearly equal."""
    return sha256(program.encode()).digest()[1] % 2 == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One reported bug in one program; `checks` is empty where no check of the list would tell the cause."""

    program: str
    name: str
    kind: str
    report: str
    wrong: str
    checks: tuple[str, ...]
    place: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"{self.program}/{self.name}"


def _bug(key: str, kind: str, report: str, wrong: str, checks: str = "", place: str = "") -> Bug:
    program, _, name = key.partition("/")
    return Bug(
        program=program,
        name=name,
        kind=kind,
        report=report if report.startswith("http") else f"https://github.com/{report}",
        wrong=wrong,
        checks=tuple(checks.split()),
        place=tuple(place.split("|")) if place else (),
    )


# One line per bug: where, kind, report, what is wrong, checks that tell the cause, words that point to the place.
# fmt: off
BUGS = [
    # digits_cnn
    _bug("digits_cnn/images_without_mask", "data", "pytorch/vision/issues/4209", "The labels are filtered by the split and the images are not, so images get the labels of others.", "mixed-targets"),
    _bug("digits_cnn/softmax_output", "loss", "jindongwang/Deep-learning-activity-recognition/issues/10", "The network ends in a softmax, and the cross entropy applies another one.", "squashed-logits unnormalized-scores", "softmax"),
    _bug("digits_cnn/not_shuffled", "data", "Deci-AI/super-gradients/issues/416", "The loader does not shuffle images that are stored class by class.", "sorted-labels single-answer", "label|class|shuffle"),
    _bug("digits_cnn/eval_after_validation", "mode", "hendrycks/ethics/issues/5", "The validation puts the model in eval mode, and nothing puts it back.", "eval-mode evaluation-mode", "eval|train()"),
    _bug("digits_cnn/schedule_per_batch", "schedule", "ivadomed/ivadomed/pull/55", "A schedule that counts epochs is stepped after every batch.", "spent-schedule", "rate|schedule"),
    # friedman_mlp
    _bug("friedman_mlp/split_after_shuffle", "data", "marin-community/marin/pull/2700", "The training set is shuffled before it is cut and the validation set is not, so they overlap.", "evaluated-training-data"),
    _bug("friedman_mlp/relu_output", "architecture", "ProteomicsML/ProteomicsML/pull/203", "The last layer of a regression is a ReLU, which cannot be negative and can die.", "squashed-logits dead-units dying-units", "ReLU|relu"),
    _bug("friedman_mlp/train_mode_in_validation", "mode", "pliang279/MultiBench/issues/26", "train() is called right after eval() in the validation.", "train-mode-evaluation", "eval|train"),
    _bug("friedman_mlp/target_is_flat", "shapes", "LAMDA-Tabular/TALENT/pull/92", "Predictions of shape (N, 1) are compared with targets of shape (N,).", "mixed-targets", "(50, 1)|(50,)"),
    _bug("friedman_mlp/no_zero_grad", "gradients", "wenet-e2e/wekws/pull/73", "zero_grad is missing.", "stale-gradients", "zero_grad"),
    # wine_gate
    _bug("wine_gate/gate_zero_twice", "architecture", "yz93/LAVT-RIS/issues/25", "Both layers of a gate start at zero, so neither ever gets a gradient.", "constant-init absent-gradients", "gate"),
    _bug("wine_gate/python_list", "parameters", "pytorch/pytorch/issues/715", "Layers are kept in a Python list, so the optimizer never sees them.", "unregistered-parameters forgotten-parameters", "hidden"),
    _bug("wine_gate/softmax_dim0", "shapes", "perone/euclidesdb/issues/2", "The softmax goes over the samples of the batch instead of the classes.", "mixed-samples unnormalized-scores", "softmax"),
    _bug("wine_gate/adam_each_epoch", "optimizer", "alan-turing-institute/deepsensor/issues/47", "A new Adam is made at the start of every epoch.", "reset-optimizer", "optimizer|momentum"),
    _bug("wine_gate/backward_after_loop", "loop", "emopodntua/medusa/issues/4", "Backward pass and step stand after the loop over batches instead of inside it."),
    # char_gpt
    _bug("char_gpt/softmax_over_queries", "shapes", "karpathy/minGPT/issues/132", "The softmax of the attention goes over the queries, which lets positions see the future.", "visible-answer", "attn|softmax"),
    _bug("char_gpt/shared_blocks", "parameters", "zalandoresearch/pytorch-vq-vae/issues/2", "The list of blocks repeats one object.", "repeated-module", "blocks"),
    _bug("char_gpt/positions_of_batch", "shapes", "cmu-l3/anlp-fall2025-code/issues/1", "Positions are counted along the batch, so all tokens of a sequence get the same one.", "order-blind mixed-samples", "pos"),
    _bug("char_gpt/no_zero_grad", "gradients", "facebookresearch/nwm/issues/16", "Gradients are never cleared on the path that is used.", "stale-gradients", "zero_grad"),
    _bug("char_gpt/zero_grad_per_microbatch", "gradients", "bytetriper/RAE/issues/67", "Gradients are cleared before every micro-batch, so only the last one counts.", "lost-gradients", "zero_grad|cleared"),
    _bug("char_gpt/loss_not_divided", "gradients", "hirofumi0810/neural_sp/issues/168", "The losses of micro-batches are not divided by their number.", "summed-micro-batches", "micro|divide"),
    # reviews_lstm
    _bug("reviews_lstm/eight_layers", "architecture", "https://www.whosebug.com/question/4230002/Output-from-LSTM-not-changing-for-different-inputs", "Eight stacked LSTM layers give nearly the same output for all inputs.", "rank-collapse forward-decay gradient-decay recurrent-gradient-off", "lstm"),
    _bug("reviews_lstm/batch_as_time", "shapes", "HHTseng/video-classification/issues/42", "The LSTM reads time first and gets the batch first.", "mixed-samples", "lstm"),
    _bug("reviews_lstm/view_as_time_first", "shapes", "vitrioil/Speech-Separation/issues/4", "Dimensions are exchanged with a reshape instead of a transpose, which mixes the data.", "mixed-samples", "reshape|view"),
    _bug("reviews_lstm/dropout_without_flag", "mode", "delip/PyTorchNLPBook/issues/28", "F.dropout is called without the training flag and stays on in evaluation.", "train-mode-evaluation", "dropout"),
    _bug("reviews_lstm/left_in_eval", "mode", "joeynmt/joeynmt/issues/184", "After a validation in the middle of the training the model stays in eval mode.", "eval-mode evaluation-mode", "eval|train()"),
    # form_tagger
    _bug("form_tagger/pad_counts", "loss", "lucidrains/DALLE-pytorch/issues/57", "The index to ignore is not given to the loss, so padding is trained as a class.", "unmasked-padding single-answer uneven-reduction", "pad|ignore"),
    _bug("form_tagger/class_zero_ignored", "loss", "nyu-mll/jiant/issues/925", "The index to ignore is that of a real class, which is never learned."),
    _bug("form_tagger/one_position", "shapes", "DiffPoseTalk/DiffPoseTalk/issues/20", "A missing slice adds the code of one position to all positions.", "order-blind", "position"),
    _bug("form_tagger/positions_of_padding", "architecture", "speechbrain/speechbrain/issues/2276", "An inverted mask leaves the position codes only at padded positions.", "order-blind idle-input", "position"),
    _bug("form_tagger/attention_over_batch", "shapes", "songyangco/GETNext/issues/2", "Attention runs along the batch instead of the sequence.", "mixed-samples", "layers"),
    _bug("form_tagger/mask_of_queries", "architecture", "hyunwoongko/transformer/pull/40", "The padding mask is put on the queries instead of the keys.", "unmasked-padding", "layers|attention"),
    # vae_digits
    _bug("vae_digits/variance_as_deviation", "algorithm", "rachtsingh/ibp_vae/issues/3", "The noise is multiplied by the variance instead of the standard deviation."),
    _bug("vae_digits/kl_coeff_unused", "loss", "Lightning-Universe/lightning-bolts/issues/328", "The coefficient of the KL term is stored and the term is never used."),
    _bug("vae_digits/encoder_only", "optimizer", "zdebruine/MMVAE/issues/39", "The optimizer gets only the parameters of the encoder.", "forgotten-parameters", "decoder"),
    # gan_ring
    _bug("gan_ring/swapped_optimizers", "optimizer", "wiseodd/controlled-text-generation/issues/15", "The optimizers of two parts hold each other's parameters.", "foreign-optimizer forgotten-parameters foreign-parameters", "optimizer|Adam"),
    _bug("gan_ring/no_zero_grad_d", "gradients", "Hsintien-Ng/idinvert_pytorch-reproduced/issues/1", "zero_grad of the discriminator's optimizer is missing.", "stale-gradients", "zero_grad"),
    _bug("gan_ring/fake_detached", "gradients", "nikhilsinghmus/image2reverb/issues/37", "The fake sample is detached in the generator's own step.", "blocked-path absent-gradients foreign-optimizer motionless-step", "netG|generator|detach|optG"),
    _bug("gan_ring/schedule_per_step", "schedule", "leftthomas/SRGAN/issues/94", "Schedules that count epochs are stepped after every batch.", "spent-schedule", "rate|schedule"),
    # dqn_grid
    _bug("dqn_grid/done_not_used", "algorithm", "navneet-nmk/pytorch-rl/issues/2", "The end of an episode is not used in the target."),
    _bug("dqn_grid/target_keeps_gradient", "algorithm", "philtabor/Deep-Q-Learning-Paper-To-Code/issues/16", "The gradient also flows through the target."),
    _bug("dqn_grid/no_target_network", "algorithm", "mrkulk/deepQN_tensorflow/issues/1", "The target comes from the network that is trained."),
    # reinforce_corridor
    _bug("reinforce_corridor/whole_return", "algorithm", "udacity/deep-reinforcement-learning/issues/42", "Every action is credited with the return of the whole episode."),
    _bug("reinforce_corridor/discount_not_summed", "algorithm", "hunkim/ReinforcementZeroToAll/issues/1", "Rewards are discounted and future ones are not added."),
    _bug("reinforce_corridor/mean_log_prob", "algorithm", "Farama-Foundation/Gymnasium/issues/1336", "The mean of all log probabilities is multiplied by the returns."),
    _bug("reinforce_corridor/entropy_added", "loss", "pukkapies/dl-imperial-maths/pull/8", "The entropy bonus has the wrong sign.", "negated-loss"),
    # two_towers
    _bug("two_towers/towers_multiplied", "parameters", "acids-ircam/ddsp_pytorch/issues/37", "Multiplying a list makes both towers the same object.", "repeated-module", "towers"),
    _bug("two_towers/target_detached", "gradients", "facebookresearch/fairseq2/pull/731", "The targets are detached although they should be learned too.", "blocked-path absent-gradients discarded-results", "towers.1|detach"),
    _bug("two_towers/positive_without_temperature", "loss", "RElbers/info-nce-pytorch/pull/17", "The temperature divides only the scores of the negatives."),
    # distill_digits
    _bug("distill_digits/teacher_twice", "loss", "labmlai/annotated_deep_learning_paper_implementations/issues/66", "The distillation compares the teacher with itself.", "discarded-results idle-input"),
    _bug("distill_digits/softmax_into_kl", "loss", "microsoft/ProDA/issues/20", "The divergence gets probabilities where it expects their logarithms.", "unnormalized-scores", "kl_div|softmax"),
    _bug("distill_digits/order_of_teacher", "data", "haitongli/knowledge-distillation-pytorch/pull/16", "Stored scores of the teacher are used in another order than the shuffled images.", "mixed-targets"),
    # blobs_segment
    _bug("blobs_segment/flips_apart", "data", "thuanz123/realfill/issues/4", "Picture and mask are flipped at random apart from each other."),
    _bug("blobs_segment/sigmoid_twice", "loss", "avBuffer/UNet3plus_pth/issues/23", "The model ends in a sigmoid, and the loss applies another one.", "squashed-logits", "sigmoid"),
    _bug("blobs_segment/focal_swapped", "loss", "qubvel/segmentation_models/issues/258", "alpha and gamma of the focal loss are passed in each other's places."),
    _bug("blobs_segment/dice_over_classes", "loss", "fastai/fastai/pull/3439", "The dice loss sums over classes and samples too, so the background dominates."),
    _bug("blobs_segment/argmax_in_loss", "gradients", "wonbeomjang/mobile-hair-segmentation-pytorch/issues/3", "A term of the loss takes an argmax, which has no gradient.", "step-function blocked-path", "argmax"),
    # gcn_groups
    _bug("gcn_groups/edges_of_one_graph", "data", "ai4co/rl4co/issues/227", "Edges of all graphs of the batch point to the nodes of the first one.", "mixed-samples"),
    _bug("gcn_groups/no_self_loops", "architecture", "dmlc/dgl/pull/1587", "Nodes do not keep their own features, because self-loops are missing."),
    _bug("gcn_groups/clip_after_step", "gradients", "awslabs/graphstorm/issues/1366", "Gradients are clipped after the step.", "misplaced-clip", "clip"),
    _bug("gcn_groups/no_eval", "mode", "yanx27/GACNet/issues/8", "The test never calls eval(), so dropout stays on.", "train-mode-evaluation", "eval|dropout"),
    # forecast_gru
    _bug("forecast_gru/bidirectional", "architecture", "https://discuss.pytorch.org/t/one-layer-bilstm-is-not-learning/175731", "A bidirectional network predicts the next value and can see it.", "visible-answer", "gru"),
    _bug("forecast_gru/gamma_zero", "schedule", "LINCellularNeuroscience/VAME/issues/26", "With the schedule turned off, the rate is multiplied by 0 instead of 1.", "spent-schedule", "rate"),
    _bug("forecast_gru/optimizer_not_resumed", "optimizer", "OpenNMT/OpenNMT-py/issues/617", "After resuming, the optimizer starts without its state.", "reset-optimizer", "optimizer|momentum"),
    _bug("forecast_gru/no_zero_grad", "gradients", "https://stats.stackexchange.com/questions/376851/why-is-lstm-so-ineffective-at-this-ridiculously-simple-sequence", "zero_grad is missing.", "stale-gradients", "zero_grad"),
    # marked_word
    _bug("marked_word/softmax_of_one", "shapes", "DEEP-PolyU/KEQA_WSDM19/issues/2", "The softmax goes over a dimension of one, so all weights are 1.", "absent-gradients discarded-results blocked-path step-function", "attn"),
    _bug("marked_word/softmax_over_batch", "shapes", "PetrochukM/PyTorch-NLP/issues/2", "The softmax of the attention goes over the batch.", "mixed-samples", "softmax"),
    _bug("marked_word/head_not_appended", "optimizer", "zjunlp/HVPNeT/issues/5", "The group of the last layer is built and never given to the optimizer.", "forgotten-parameters", "fc"),
    _bug("marked_word/clip_before_backward", "gradients", "yandex-research/tabm/issues/20", "Gradients are clipped before the backward pass, when there are none.", "misplaced-clip", "clip"),
    # deep_sets
    _bug("deep_sets/flat_target", "shapes", "manzilzaheer/DeepSets/pull/1", "Predictions of shape (N, 1) minus targets of shape (N,) make a square.", "mixed-targets", "(64, 1)|(64,)"),
    _bug("deep_sets/no_nonlinearity", "architecture", "https://discuss.pytorch.org/t/unable-to-learn-xor-representation-using-2-layers-of-multi-layered-perceptron-mlp/13287/3", "There is no activation between the layers, so the network is linear."),
    # finetune_digits
    _bug("finetune_digits/never_unfrozen", "parameters", "nttcslab/byol-a/issues/7", "Weights are unfrozen only if they are not frozen.", "frozen-matrices frozen-random-weights"),
    _bug("finetune_digits/prefix_not_removed", "parameters", "stefanopini/simple-HRNet/issues/79", "No name in the checkpoint matches, strict=False hides it, and the body is frozen.", "frozen-random-weights", "body"),
    _bug("finetune_digits/old_head_in_optimizer", "optimizer", "microsoft/nni/issues/4521", "The optimizer was built before layers were replaced and holds the old ones.", "foreign-parameters forgotten-parameters foreign-optimizer", "head"),
    _bug("finetune_digits/best_not_copied", "loop", "pytorch/tutorials/pull/188", "The best weights are kept as a reference, which goes on changing."),
    # diffusion_moons
    _bug("diffusion_moons/timestep_is_batch_size", "data", "Stability-AI/StableCascade/issues/142", "The time step is the batch size instead of random numbers.", "idle-input", "t|time"),
    _bug("diffusion_moons/weights_not_restored", "loop", "huggingface/diffusers/issues/2321", "Averaged weights are put into the model for a preview and left there.", "restored-weights"),
    # items_factors
    _bug("items_factors/sigmoid_twice", "loss", "yudi-mars/daisyRec/pull/15", "The score goes through a sigmoid, and the loss applies another one.", "squashed-logits", "sigmoid"),
    _bug("items_factors/negatives_of_factors", "data", "benfred/implicit/issues/745", "The number of items is read from the wrong dimension, so few items are ever negatives."),
    # locate_square
    _bug("locate_square/only_score_loss", "loss", "tom-roddick/oft/issues/6", "A line left from a test optimizes only one of the losses.", "discarded-results absent-gradients", "position"),
    _bug("locate_square/pixels_not_scaled", "data", "hill-a/stable-baselines/issues/328", "Pixels from 0 to 255 are not scaled.", "input-out-of-scale", "input"),
    _bug("locate_square/scaled_twice", "data", "4uiiurz1/pytorch-nested-unet/issues/62", "Pixels are divided by 255 twice.", "input-out-of-scale", "input"),
    _bug("locate_square/validation_is_trained", "data", "princeton-vl/pose-ae-train/issues/11", "The phase is not asked, so validation data are trained too.", "evaluated-training-data"),
    # signals_resnet
    _bug("signals_resnet/second_layer_unused", "architecture", "inria-thoth/HySUPP/issues/3", "A layer is defined and not used in the forward pass.", "idle-modules", "layer2"),
    _bug("signals_resnet/output_ignored", "architecture", "state-spaces/s4/pull/30", "Without a residual connection, a block returns its input and ignores its layers.", "discarded-results idle-modules absent-gradients", "blocks"),
    _bug("signals_resnet/shortcut_twice", "architecture", "yakhyo/darknet-pytorch/issues/2", "The shortcut is added twice."),
    # maml_sine
    _bug("maml_sine/data_is_changed", "gradients", "KanishJebaMathewM/Truxify/issues/13118", "The inner step writes to .data of a copy, so the loss has no path to the meta-weights.", "absent-gradients foreign-optimizer motionless-step blocked-path still-parameters foreign-parameters", "net"),
    _bug("maml_sine/no_create_graph", "algorithm", "kjaved0/mrcl/issues/15", "The inner gradient is taken without its graph, so second derivatives are missing."),
]
# fmt: on
